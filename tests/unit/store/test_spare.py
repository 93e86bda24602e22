"""What memory can be had: of the host, and of every control group around the process, in both of their versions."""

from pathlib import Path

import pytest

from everstep.store.spare import spare

GIB = 1 << 30
NONE_OLD = 9223372036854771712


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def host(free: int, groups: str) -> dict[str, str]:
    return {
        "proc/sys/kernel/random/boot_id": "b007\n",
        "proc/meminfo": f"MemTotal: 999999999 kB\nMemFree: 1 kB\nMemAvailable: {free // 1024} kB\n",
        "proc/self/cgroup": groups,
    }


def new(at: str, limit: int | str, used: int, pages: int = 0, *, high: int | str = "max") -> dict[str, str]:
    at = f"sys/fs/cgroup/{at}"
    return {
        f"{at}/memory.max": f"{limit}\n",
        f"{at}/memory.high": f"{high}\n",
        f"{at}/memory.current": f"{used}\n",
        f"{at}/memory.stat": f"anon 1\nshmem 0\ninactive_file {pages - pages // 4}\nactive_file {pages // 4}\n",
    }


def old(at: str, limit: int, used: int, pages: int = 0) -> dict[str, str]:
    at = f"sys/fs/cgroup/memory/{at}"
    return {
        f"{at}/memory.limit_in_bytes": f"{limit}\n",
        f"{at}/memory.usage_in_bytes": f"{used}\n",
        f"{at}/memory.stat": f"inactive_file 0\ntotal_inactive_file {pages}\ntotal_active_file 0\n",
    }


CASES: dict[str, tuple[dict[str, str], int]] = {
    "a host without control groups": (host(8 * GIB, ""), 8),
    "groups without a limit": (host(8 * GIB, "0::/a/b\n") | new("a/b", "max", GIB) | new("a", "max", GIB), 8),
    "its own group": (host(8 * GIB, "0::/a\n") | new("a", 4 * GIB, GIB), 3),
    "the group above it": (host(8 * GIB, "0::/job/0/1\n") | new("job/0/1", "max", 0) | new("job", 6 * GIB, GIB), 5),
    "the least of several": (host(8 * GIB, "0::/a/b\n") | new("a/b", 7 * GIB, 0) | new("a", 4 * GIB, 2 * GIB), 2),
    "a container that sees its own group as the root": (host(8 * GIB, "0::/\n") | new("", 4 * GIB, GIB), 3),
    "a path that only the host can see": (host(8 * GIB, "0::/../pod/x\n") | new("", 4 * GIB, GIB), 3),
    "pages of files make way": (host(8 * GIB, "0::/a\n") | new("a", 4 * GIB, 4 * GIB, 3 * GIB), 3),
    "where it would be slowed down": (host(8 * GIB, "0::/a\n") | new("a", 6 * GIB, GIB, high=3 * GIB), 2),
    "more than its limit": (host(8 * GIB, "0::/a\n") | new("a", GIB, 2 * GIB), 0),
    "the old version": (
        host(8 * GIB, "4:memory:/j/0\n1:cpu:/\n0::/\n") | old("j/0", NONE_OLD, 0) | old("j", 4 * GIB, 2 * GIB, GIB),
        3,
    ),
    "the old version without a limit": (host(8 * GIB, "4:memory:/\n") | old("", NONE_OLD, GIB), 8),
    "the old version in a container": (host(8 * GIB, "3:cpu,memory:/docker/1f\n") | old("", 3 * GIB, GIB), 2),
    "numbers that are none": (host(8 * GIB, "0::/a\n") | new("a", "many", 0), 8),
    "a group whose use cannot be read": (host(8 * GIB, "0::/a\n") | {"sys/fs/cgroup/a/memory.max": f"{GIB}"}, 8),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_spare(case: str, tmp_path: Path) -> None:
    files, expected = CASES[case]
    assert spare(written(tmp_path, files)).nbytes == expected * GIB


def test_this_host_has_some() -> None:
    assert 0 < spare().nbytes < 1 << 50


def test_two_tasks_of_a_job_count_on_the_jobs_memory(tmp_path: Path) -> None:
    job = new("job", 6 * GIB, GIB) | new("job/0", "max", 0) | new("job/1", "max", 0) | new("job/2", GIB, 0)
    found = []
    for task in range(3):
        root = written(tmp_path, host(8 * GIB, f"0::/job/{task}\n") | job)
        found.append(spare(root).whose)
    assert found[0] == found[1]
    assert found[2] != found[0], "the third is held to a limit of its own"


def test_nothing_readable_is_no_limit(tmp_path: Path) -> None:
    assert spare(tmp_path).nbytes == 1 << 62
