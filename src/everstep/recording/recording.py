"""From `resume` to `close`: takes each step from the training loop and hands it to the keeper through shared memory.

A step is a record of what the optimizer consumed. A whole state goes beside it now and then, so that memory and disk
need not replay far, and instead of it where a record cannot hold the step.
"""

import time

import torch

from everstep.capture import record, snapshot
from everstep.capture.hooks import BUFFER_FULL, Hooks
from everstep.capture.measure import HEAD_BYTES
from everstep.capture.mover import Mover, offsets
from everstep.capture.proof import Proof
from everstep.capture.shards import local
from everstep.errors import EverstepError, Misuse, StoreFailed
from everstep.keeper.link import Link
from everstep.keeper.pace import Pace
from everstep.recording.program import Program
from everstep.recording.states import States
from everstep.recording.unsettled import Unsettled
from everstep.ring import ring as rings
from everstep.ring.pen import Extent
from everstep.ring.ring import REBASE, UPDATE
from everstep.ring.watch import watch
from everstep.settings import Settings
from everstep.types import Tensor
from everstep.uncollected import uncollected

NOT_ON_DISK = "the disk does not hold the step before it"
GAP = "steps before it were not recorded"
IN_PARTS = "a whole state per step costs too much; from now on gradients are recorded, and states taken in parts"
PIN_SECONDS = 600.0


class Recording:
    """One run's steps. `commit` hands one over. If `together`, other ranks do the same with theirs."""

    def __init__(
        self, link: Link, program: Program, settings: Settings, mover: Mover, *, free_bytes: int, together: bool
    ) -> None:
        self._link = link
        self._program = program
        self._settings, self._stall = settings, settings.stall_ms_max / 1000
        self._mover = mover
        self._pace = Pace(settings)
        captures = settings.source != "state"
        self._hooks = Hooks(
            program.roster, mover, self._take, captures=captures, rounds=captures and settings.gradients == "bf16",
            by_layer=settings.source == "layer", about_to_step=self._confirm,
        )  # fmt: skip
        self._unsettled = Unsettled(link, mover)
        self._states = States(
            link, program, settings, mover, self._unsettled.add, free_bytes=free_bytes, together=together
        )
        self._proof = Proof() if not self._hooks.exact else None
        self._awaited = -1
        self._gap = False
        self._owed = False
        self._sent = (-1, -1)
        """The newest step whose state was to come to the disk, and the epoch of the keeper that had it."""
        self.step = self.recorded = -1
        """The newest step committed, and the newest of them that is recorded."""

    def begin(self, step: int, epoch: int | None, *, memory: bool, changed: str | None) -> None:
        """Go on after `step`. `changed` says why the next step cannot follow from the records before it."""
        self.step = self.recorded = step
        self._digest(step)  # the first time takes a second, and while memory is pinned, until that is done
        pins = None if self._mover.lasting else self._mover
        held = self._link.begin(step, epoch, memory=memory, ring=self._states.ring, pins=pins)
        self._states.begin()
        if not memory:  # who resumes from memory is in a hurry, and has areas
            self._states.make_room()
        if epoch is None and not memory:
            while not self._state(step, to_disk=True):  # the log leads nowhere without it
                if not self._link.areas.wait(PIN_SECONDS):
                    raise StoreFailed("the keeper of this run does not answer. Nothing was changed.")
            self._link.poke()
        if self._mover.lasting or (epoch is None and not memory):
            self._link.areas.wait(PIN_SECONDS, all_of_them=True)  # where they are pinned, that takes long
        self._program.context.look()
        self._hooks.start()
        if changed or not held:
            self._hooks.why_base = changed or NOT_ON_DISK

    def resumed(self, state_bytes: int, log_bytes: int, records: int, seconds: float) -> None:
        """What replaying the log took. Before it would take too long, a base is due."""
        self._pace.resumed(state_bytes, log_bytes, records, seconds)

    @uncollected()
    def commit(self) -> int:
        """Hand over the step just taken."""
        link, hooks = self._link, self._hooks
        link.refuse_if_fenced()
        for sequence in set(link.pen.unsaid) - self._unsettled.sequences - self._states.late:
            link.void(sequence)  # a commit was interrupted: what it began is nothing
        hooks.check()
        self._await_device()
        if not hooks.updates and hooks.why_base is None and not self._program.scaled:
            raise Misuse(
                f"commit() after step {self.step}: no optimizer has stepped since the last commit. Commit once per "
                "optimizer.step(), after it (with gradient accumulation, not after every micro-batch). With a "
                "GradScaler, pass it in state=."
            )
        used = link.ring.word(rings.W_COMMITTED) - 1  # a commit that was interrupted has used up its number
        step = max(self.step, used) + 1
        why_base = hooks.why_base or self._turn() or (GAP if self._gap else None)
        self._gap = True  # an interrupt from here on leaves a gap, and a base closes it
        link.committed(step)
        try:
            if not hooks.captures and hooks.why_base is None:
                recorded = self._commit_state(step)
            elif why_base is None:
                recorded = self._commit_record(step)
            else:
                recorded = self._commit_base(step, why_base)
        except EverstepError:
            raise  # something that can never be recorded; the caller must know
        except Exception as failed:  # noqa: BLE001 out of memory, say: training comes first, `health` shows it
            self._give_up(step, f"capture failed ({type(failed).__name__}: {failed})")
            recorded = False
        self.step = step
        hooks.reset()
        self._gap = not recorded
        self.recorded = step if recorded else self.recorded
        self._states.stepped(step)
        link.poke()
        return step

    def finish(self) -> None:
        """Wait until what is committed is whole. Nothing but the device is waited for."""
        if self._unsettled.sequences or self._states.late:
            self._states.copy_late()
            self._mover.synchronize()
            self._hooks.check()
            self._confirm()
            self._link.poke()

    @property
    def owes(self) -> bool:
        """Whether the newest step does not come to the disk by itself: spared, lost with a keeper, or not recorded."""
        link, alone = self._link, not self._hooks.captures  # states, of which the disk gets those it has time for
        if self._unsettled.sequences or link.acknowledged >= self.step or self._sent == (self.step, link.epoch):
            return False
        spared = self._owed or link.wants_base or link.ring.word(rings.W_DROPPED) > 0
        return alone or spared or self._hooks.why_base == NOT_ON_DISK or self.recorded < self.step

    @property
    def still(self) -> bool:
        """Whether the program is as its newest step left it: who goes on has at least drawn a number, or counted."""
        self._hooks.check()
        unbroken = self._hooks.why_base in (None, NOT_ON_DISK)
        return unbroken and not self._hooks.updates and self._program.context.still()

    def pay(self, seconds: float | None) -> None:
        """A base of the newest step, as the program is now, once the disk has the one before."""
        link, missing = self._link, self.recorded < self.step
        link.ready(PIN_SECONDS if seconds is None else seconds)
        if not link.wait_for_base(seconds, patiently=True, emptied=missing) or link.acknowledged >= self.step:
            return
        if missing or not self._hooks.captures:
            self._hooks.say_all()
            self._put_rebase(self.step)
        if self._state(self.step, to_disk=True, must=True):
            self.recorded, self._gap = self.step, False
        self.finish()
        link.poke()

    def let_go(self) -> None:
        """Of the training program, and make no more memory."""
        self._hooks.remove()
        self._hooks.reset()
        self._link.ready(PIN_SECONDS)
        self._link.areas.close()

    def release(self) -> None:
        """The keeper has everything: the shared memory is not used any more."""
        self._mover.release()

    @property
    def predicted(self) -> float | None:
        """What the schedule expects capture to cost; None before enough was measured."""
        return self._states.predicted

    def leave(self) -> None:
        """In a forked child: the program goes on, unwatched."""
        self._hooks.watching = False

    # The three ways to hold a step.

    def _commit_record(self, step: int) -> bool:
        """A record, and a state beside it when it is time for one."""
        whole = step % self._settings.digest_every == 0
        roster, before = self._program.roster, self._proof.finish(step - 1) if self._proof is not None else None
        owned = self._program.owned
        taken = record.take(self._hooks, self._program.context, roster, whole=whole, before=before, owned=owned)
        if not self._link.wait_for_room(taken.rest_bytes + 4096, self._stall):
            self._give_up(step, BUFFER_FULL)
            return False
        extents = [*taken.gradients, *self._copy_far(taken.far)]
        self._awaited = self._link.put_record(UPDATE, step, [taken.head], extents, taken.tail)
        self._unsettled.add(self._awaited, step, alone=True)
        if whole:
            self._digest(step)
        due = self._pace.recorded(taken.nbytes, time.perf_counter()) or self._link.wants_base or self._owed
        to_disk = due and self._states.disk.welcome(step)
        if not (to_disk and self._state(step, to_disk=True)) and self._states.take_part(step, taken.nbytes):
            self._hooks.say_all()
        if self._mover.complaint:
            self._states.complained(self._mover.complaint)
            self._hooks.captures = not self._states.alone
        return True

    def _commit_base(self, step: int, why: str) -> bool:
        """A step that replay cannot reach: only a whole state can hold it."""
        link = self._link
        if why in (GAP, BUFFER_FULL) and not self._states_help():
            self._give_up(step, why)
            return False
        self._owed = not link.wait_for_base(self._stall if link.areas.count == 1 else 0.0)
        if self._owed and link.areas.count == 1:
            self._give_up(step, why)
            return False
        self._abandon()
        if self._hooks.why_base is not None:
            self._hooks.rename(self._program.call_the_roll())
        self._hooks.say_all()
        self._put_rebase(step)
        if not self._state(step, to_disk=not self._owed, must=True):
            self._give_up(step, why)
            return False
        link.warn(f"step {step} is kept as a base: {why}", kind=why)
        return True

    def _commit_state(self, step: int) -> bool:
        """The whole state, at every step; to the disk as often as that can take one."""
        self._abandon()
        self._hooks.handed_over()
        alone = self._link.areas.count == 1  # then only the disk can hold a state
        to_disk = self._link.wait_for_base(self._stall) if alone else self._states.disk.welcome(step)
        if alone and not to_disk:
            self._give_up(step, "the disk was still writing the state before it")
            return False
        if to_disk:
            self._put_rebase(step)
        if self._state(step, to_disk=to_disk, must=True):
            return True
        self._give_up(step, "no area was free")
        return False

    def _put_rebase(self, step: int) -> None:
        """A record that says what the base of this step must prove to be."""
        piece = record.take_rebase(self._hooks, self._program.roster, self._program.owned)
        self._unsettled.add(self._link.put_record(REBASE, step, [piece], [], []), step, alone=False)

    def _turn(self) -> str | None:
        """Gradients are recorded from now on, if that is the better way; then a base must come first."""
        if self._hooks.captures or not self._states.in_parts:
            return None
        self._hooks.captures = True
        return IN_PARTS

    def _states_help(self) -> bool:
        """Whether a state now closes a gap for long. Any sooner, and every step would cost a whole one."""
        ring, unread = self._link.ring.data_bytes, self._link.pen.unread_bytes
        return 2 * unread <= ring and self._states.affordable()

    def _state(self, step: int, *, to_disk: bool, must: bool = False) -> bool:
        """The whole state as it is now. False when there is no room for it."""
        nbytes = self._states.take(step, to_disk=to_disk, must=must)
        if nbytes is not None and to_disk:
            self._pace.based(nbytes)
            self._owed, self._sent = False, (step, self._link.epoch)
        return nbytes is not None

    # Copies, and whether they are right.

    def _digest(self, step: int) -> None:
        """Of the state on the device as it is now; the next record carries it."""
        if self._proof is not None:
            roster = self._program.roster
            tensors = {f"model/{name}": parameter for name, parameter in roster.parameters.items()}
            tensors |= snapshot.optimizer_tensors(roster)
            self._proof.begin(step, {name: local(tensor) for name, tensor in tensors.items()})

    def _copy_far(self, far: list[tuple[Tensor, torch.Tensor]]) -> list[Extent]:
        """What a record says of tensors in device memory, which the next forward pass may change."""
        described, tensors = [told for told, _ in far], [tensor for _, tensor in far]
        places, nbytes = offsets(described)
        extent = self._link.pen.take(nbytes) if far else None
        if extent is None:
            return []
        self._mover.take("context", extent, described, places, tensors, brief=True)
        self._program.context.copied(described, places, extent.memory)
        return [extent]

    def _confirm(self) -> None:
        """The optimizer is about to step: nothing of ours is read in place any more. Was it as it should be?"""
        if (lost := self._states.before_step()) is not None:
            self._lose(lost, "its state could not be packed")
        sound = self._hooks.why_base is None
        for step, why in self._unsettled.settle(sound=sound).items():
            self._lose(step, why)
        if not sound:
            self._states.give_up()

    def _lose(self, step: int, why: str) -> None:
        """What was to hold this step does not. A base closes the gap."""
        self._gap, self.recorded, self._sent = True, min(self.recorded, step - 1), (-1, -1)
        self._link.skip(step, why)

    def _await_device(self) -> None:
        """Let the device finish the step before the last: so at most one step is lost with this process."""
        last = self._awaited
        if last >= 0 and not self._mover.lasting:
            watch(lambda: self._link.ring.copied(last) or self._link.state != "ok", self._stall)

    # Room.

    def _take(self, nbytes: int) -> Extent | None:
        """Room for gradients; None when the step is not to be recorded, or there is none in time."""
        if self._gap or not self._link.ready(self._stall):
            return None
        if not self._link.wait_for_room(nbytes + HEAD_BYTES, self._stall):
            return None
        return self._link.pen.take(nbytes)

    def _give_up(self, step: int, why: str) -> None:
        self._abandon()
        self._program.context.pass_over()
        self._link.skip(step, why)

    def _abandon(self) -> None:
        if self._link.pen.begun:
            self._mover.synchronize()  # nothing may be copied any more into what is given back
            self._link.pen.abandon()
