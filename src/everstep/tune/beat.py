"""At which steps writers that do not talk to each other write bases: at the same ones, however fast their disks are.

Where disks get bases only, a step can be restored as a whole if every writer has a base of just that step. So each
takes them at multiples of a power of two, at least as many steps as it needs for one: who is slower takes every
second, or fourth, of those that the others take.
"""


class Beat:
    """Told when a base begins and when the next one could."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._began: int | None = None
        self.every = 1
        """Steps. A writer that is alone takes a base whenever it can."""

    def on(self, step: int) -> bool:
        """Whether a base may be of this step."""
        return step % self.every == 0

    @property
    def busy(self) -> bool:
        """Whether a base has begun, and the next one could not yet."""
        return self._began is not None

    def began(self, step: int) -> None:
        self._began = step

    def ended(self, step: int) -> None:
        """From now on another base could be taken. A beat is kept until one half as long would do twice over: else
        writers that take about as long as a power of two would hardly ever meet."""
        assert self._began is not None
        took, self._began = step - self._began, None
        if not self._shared:
            return
        if took > self.every:
            self.every = 1 << (took - 1).bit_length()
        elif 4 * took <= self.every:
            self.every //= 2
