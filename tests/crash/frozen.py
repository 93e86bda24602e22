"""Files as a crash left them, for reading only."""

import errno

from everstep.types import Bytes


class SimSource:
    """`Source` over bytes that do not change."""

    def __init__(self, content: Bytes) -> None:
        self._content = content
        self.size = len(content)

    def read(self, offset: int, length: int) -> bytes:
        data = bytes(self._content[offset : offset + length])
        if len(data) != length:
            raise EOFError("the file ends")
        return data

    def read_into(self, offset: int, target: memoryview) -> None:
        target[:] = self.read(offset, len(target))

    def close(self) -> None:
        pass


class FrozenDisk:
    """What a crash left, for reading. Any change is a bug: recovery that only looks must not write."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def names(self, directory: str) -> list[str]:
        if not directory:
            return sorted({path.partition("/")[0] for path in self.files})
        start = f"{directory}/"
        found = sorted(path[len(start) :] for path in self.files if path.startswith(start) and len(path) > len(start))
        if not found and start not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        return found

    def exists(self, path: str) -> bool:
        return path in self.files

    def source(self, path: str) -> SimSource:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimSource(self.files[path])
