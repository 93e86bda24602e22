"""A case is chosen by a part of its name, and only what is chosen is measured."""

from bench.overhead.cases import FULL, chosen


def test_without_a_choice_everything_is_measured() -> None:
    assert chosen(FULL, []) == FULL


def test_a_choice_leaves_out_programs_without_a_case() -> None:
    (job,) = chosen(FULL, ["gpt-774m compiled, state"])
    assert job.cases() == ["gpt-774m compiled, state"]


def test_several_choices_add_up() -> None:
    jobs = chosen(FULL, ["gpt-124m compiled, torch.save", "resnet-50"])
    assert [case for job in jobs for case in job.cases()] == [
        "gpt-124m compiled, torch.save",
        "resnet-50 eager, gradient fp32",
        "resnet-50 eager, gradient bf16",
        "resnet-50 eager, state",
    ]


def test_no_two_cases_have_one_name() -> None:
    cases = [case for job in FULL for case in job.cases()]
    assert len(set(cases)) == len(cases)
