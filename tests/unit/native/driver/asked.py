"""Run with the path of a driver: the bus over it, in a process of its own, because a driver stays for good."""

import ctypes
import os
import random
import sys
import time

driver = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # found by its name when the bus looks for libcuda
driver.most.restype = driver.all.restype = ctypes.c_size_t

import pytest  # noqa: E402

from everstep import native  # noqa: E402

PORTION, SIZES = 1000, [1, 999, 1000, 1001, 0, 5321, 64, 2, 3999]


def blocks() -> tuple[list[bytearray], list[int], list[int], bytearray]:
    sources = [bytearray(random.randbytes(size)) for size in SIZES]
    places = [sum(SIZES[:at]) + 7 * at for at in range(len(SIZES))]
    return sources, [address(source) for source in sources], places, bytearray(places[-1] + SIZES[-1])


def address(data: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data)) if data else 0


def arrived(sources: list[bytearray], places: list[int], target: bytearray) -> bool:
    return all(target[place : place + len(source)] == source for place, source in zip(places, sources, strict=True))


def until(word: bytearray, value: int) -> None:
    ends = time.monotonic() + 20
    while int.from_bytes(word, "little") != value:
        assert time.monotonic() < ends, "never written"
        time.sleep(0.001)


def main() -> None:
    wakes, word, flag = os.eventfd(0), bytearray(8), bytearray(8)
    numbers = bytearray(b"".join(number.to_bytes(8, "little") for number in range(native.Bus.NUMBERS)))
    bus = native.Bus(1, wakes, address(numbers), address(flag))
    for turn in range(1, 6):
        sources, addresses, places, target = blocks()
        driver.be_late(turn)
        number = bus.copy(native.Copies(places, addresses, SIZES), address(target), 2, PORTION)
        assert bus.write(address(word), turn) == number + 1
        until(word, turn)
        assert arrived(sources, places, target)
        assert bus.asked() >= number
        assert os.eventfd_read(wakes) == 1
    assert driver.most() <= PORTION
    portions = -(-sum(SIZES) // PORTION)
    assert driver.all() == 5 * (sum(SIZES) + 8 * portions)  # a number behind each
    assert int.from_bytes(flag, "little") == 5 * portions % native.Bus.NUMBERS
    assert driver.looked() == sum(turn + 1 for turn in range(1, 6))  # a number need not be asked for

    sources, addresses, places, target = blocks()
    driver.be_late(1 << 30)  # training never gets there; in a hurry that is the device's to wait for
    number = bus.copy(native.Copies(places, addresses, SIZES), address(target), 2, PORTION)
    bus.hurry(number)
    assert bus.asked() == number
    assert arrived(sources, places, target)
    assert driver.most() == (sum(SIZES) if sys.argv[2] == "batches" else max(SIZES))
    driver.be_late(0)

    driver.lose_numbers(1)  # a portion travels, and the device fails meanwhile: nobody waits for ever
    other_flag = bytearray(8)
    other = native.Bus(1, wakes, address(numbers), address(other_flag))
    number = other.copy(native.Copies(places, addresses, SIZES), address(target), 2, PORTION)
    time.sleep(0.05)
    assert other.asked() < number
    driver.break_down()
    ends = time.monotonic() + 20
    while other.asked() < number:
        assert time.monotonic() < ends, "waits for ever"
        time.sleep(0.001)
    with pytest.raises(RuntimeError, match="error 719"):
        other.hurry(number)
    other.close()
    driver.recover()

    driver.fail_at(ctypes.c_int.in_dll(driver, "made").value)

    def copy_and_say_so() -> None:
        bus.copy(native.Copies(places, addresses, SIZES), address(target), 2, PORTION)
        bus.write(address(word), 99)
        bus.hurry(1 << 63)

    with pytest.raises(RuntimeError, match="error 700"):
        copy_and_say_so()
    for call in (lambda: bus.copy(native.Copies([], [], []), 0, 2, PORTION), lambda: bus.write(address(word), 99)):
        with pytest.raises(RuntimeError, match="error 700"):
            call()
    assert int.from_bytes(word, "little") != 99
    bus.close()
    bus.close()
    print("as it should be")


main()
