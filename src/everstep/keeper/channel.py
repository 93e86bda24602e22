"""A private line between processes of one user on one host: whole messages, and memory blocks along with them.

A Unix socket in a directory that only the user may enter. Nothing here can be reached from a network.
"""

import os
import select
import socket
import struct

import msgspec

from everstep.errors import StoreFailed
from everstep.keeper.messages import Message

MESSAGE_BYTES_MAX = 128 << 10
BLOCKS_MAX = 16
CREDENTIALS = struct.Struct("3i")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


class Gone(Exception):
    """The other side is not there any more."""


class Line:
    """One connection. Messages arrive whole and in order, or `Gone` is raised."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: Message, blocks: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._end, [_encode(message)], blocks or [])
        except OSError as broken:
            raise Gone(str(broken)) from broken

    def takes(self, seconds: float) -> bool:
        """Whether `send` would not wait, after at most `seconds`."""
        watch = select.poll()
        watch.register(self.fileno(), select.POLLOUT)
        return bool(watch.poll(1000 * seconds))

    @property
    def lost(self) -> bool:
        """Whether the other side has hung up, or died."""
        watch, descriptor = select.poll(), self.fileno()
        if descriptor < 0:
            return True
        watch.register(descriptor, 0)
        return bool(watch.poll(0))

    def nudge(self, message: Message) -> None:
        """Send a message that may as well be lost: when the other side has not read the ones before, it is awake."""
        try:
            self._end.send(_encode(message), socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError as broken:
            raise Gone(str(broken)) from broken

    def receive(self, seconds: float | None = None) -> tuple[Message, list[int]] | None:
        """The next message and the descriptors that came with it; None when there is none in time."""
        if seconds is not None and not heard([self.fileno()], seconds):
            return None
        try:
            data, blocks, flags, _ = socket.recv_fds(self._end, MESSAGE_BYTES_MAX, BLOCKS_MAX)
        except OSError as broken:
            raise Gone(str(broken)) from broken
        if not data or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise Gone("the line was closed")
        try:
            return _decode(data), blocks
        except msgspec.MsgspecError as bad:
            for block in blocks:
                os.close(block)
            raise Gone(f"a message cannot be read ({bad})") from bad

    def peer(self) -> tuple[int, int]:
        """Process and user at the other end, as the kernel knows them."""
        held = self._end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid, user, _ = CREDENTIALS.unpack(held)
        return pid, user

    def fileno(self) -> int:
        return self._end.fileno()

    def close(self) -> None:
        self._end.close()


def heard(descriptors: list[int], seconds: float) -> list[int]:
    """Which of these have something to say, after at most `seconds`. Not select: it fails beyond 1024 descriptors."""
    watch = select.poll()
    for descriptor in descriptors:
        watch.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in watch.poll(1000 * seconds)]


def listen(address: str) -> socket.socket:
    """An ear at `address`, which must not be taken."""
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        ear.bind(address)
        ear.listen(16)
    except OSError as refused:
        ear.close()
        raise StoreFailed(f"{address}: a keeper cannot listen here ({refused.strerror}).") from refused
    return ear


def accept(ear: socket.socket) -> Line | None:
    """The next caller; None if it is another user, who is not even answered."""
    end, _ = ear.accept()
    line = Line(end)
    if line.peer()[1] == os.geteuid():
        return line
    line.close()
    return None


def call(address: str) -> Line | None:
    """A line to the keeper that listens at `address`; None when nobody does."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        end.connect(address)
    except OSError:
        end.close()
        return None
    return Line(end)


def alive(pid: int) -> bool:
    """Whether this process runs. One that has ended but was not waited for yet does not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        return not heard([descriptor], 0.0)
    finally:
        os.close(descriptor)
