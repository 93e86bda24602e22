"""Memory is given out again when, and only when, nobody can see it any more."""

import torch

from everstep.recover.pages import HUGE_BYTES, Pages


def address(memory: memoryview) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8).data_ptr()


def test_what_nobody_has_is_given_out_again() -> None:
    pages = Pages()
    first = pages.take(3 * HUGE_BYTES)
    where = address(first)
    del first
    again = pages.take(2 * HUGE_BYTES)
    assert address(again) == where
    assert len(again) == 2 * HUGE_BYTES
    assert address(pages.take(HUGE_BYTES)) != where


def test_a_tensor_over_a_part_keeps_all_of_it() -> None:
    pages = Pages()
    memory = pages.take(HUGE_BYTES)
    where = address(memory)
    tensor = torch.frombuffer(memory[64:1024], dtype=torch.float32).view(-1, 2)[3:]
    tensor.fill_(7.0)
    del memory
    other = pages.take(HUGE_BYTES)
    assert address(other) != where
    other[:] = bytes(HUGE_BYTES)
    assert (tensor == 7.0).all()
    del tensor
    assert address(pages.take(HUGE_BYTES)) == where


def test_what_is_too_small_is_not_given_out_for_more() -> None:
    pages = Pages()
    where = address(pages.take(HUGE_BYTES))
    larger = pages.take(HUGE_BYTES + 1)
    assert len(larger) == HUGE_BYTES + 1
    assert address(pages.take(HUGE_BYTES)) == where


def test_a_little_memory_is_plain() -> None:
    assert bytes(Pages().take(100)) == bytes(100)
