#!/usr/bin/env python3
"""Writes generated.jsonl: limits, hostile lengths, races, and orders of waits, queues and barriers.

The answers are those of the protocol's description (docs/spec/wire.md). PyTorch's servers have been checked against them.
"""
import json
import pathlib
import struct

CASES = []
NO_LIMITS = {"poll": {"skip": "the poll back end has no limits"}}
HALF = {"poll": {"skip": "half a request stops the poll back end"}}
MISSING = {"poll": {"skip": "the poll back end closes on a missing key"}}


def u64(number):
    return struct.pack("<Q", number)


def i64(number):
    return struct.pack("<q", number)


def blob(data):
    data = data.encode() if isinstance(data, str) else data
    return u64(len(data)) + data


def keys(*names):
    return u64(len(names)) + b"".join(map(blob, names))


def set_(key, value):
    return b"\x01" + blob(key) + blob(value)


def get(key):
    return b"\x03" + blob(key)


def add(key, delta):
    return b"\x04" + blob(key) + i64(delta)


def check(*names):
    return b"\x05" + keys(*names)


def wait(*names):
    return b"\x06" + keys(*names)


def push(key, value):
    return b"\x0e" + blob(key) + blob(value)


def pop(key):
    return b"\x0f" + blob(key)


def barrier(key, world_size):
    return b"\x12" + blob(key) + i64(world_size)


CANCEL = b"\x0c"


def case(name, op, tags, **fields):
    hexed = {k: v.hex() if isinstance(v, bytes) else v for k, v in fields.items() if v is not None}
    CASES.append({"name": name, "op": op, "tags": tags, **hexed})


def single(name, op, request, response, closes=None, tags=(), setup=(), answers=None, note=None):
    case(name, op, list(tags), setup=[part.hex() for part in setup], request_hex=request,
         response_hex=response, closes=closes, **{"as": answers, "note": note})


def several(name, op, steps, answers=None, note=None):
    hexed = [{k: v.hex() if isinstance(v, bytes) else v for k, v in step.items()} for step in steps]
    case(name, op, [], steps=hexed, **{"as": answers, "note": note})


def on(connection, **fields):
    return {"c": connection, **fields}


def hostile_lengths():
    # Each is refused when the length has arrived, before the bytes that it announces.
    lengths = {"limit": 8193, "2_31": 1 << 31, "2_63": 1 << 63, "u64_max": (1 << 64) - 1}
    commands = {"COMPARE_SET": 2, "GET": 3, "ADD": 4, "DELETE_KEY": 8, "APPEND": 9, "QUEUE_PUSH": 14,
                "QUEUE_POP": 15, "QUEUE_LEN": 16, "BARRIER": 18}
    for op, byte in commands.items():
        for name, length in lengths.items():
            single(f"{op.lower()}_key_length_{name}_closes", op, bytes([byte]) + u64(length), b"", True,
                   ["limit"], answers=NO_LIMITS)
    for op, byte in {"CHECK": 5, "WAIT": 6, "MULTI_GET": 10, "MULTI_SET": 11}.items():
        single(f"{op.lower()}_first_key_length_closes", op, bytes([byte]) + u64(1) + u64(8193), b"", True,
               ["limit"], answers=NO_LIMITS)
    values = {"limit": (8 << 20) + 1, "u64_max": (1 << 64) - 1}
    for op, byte in {"COMPARE_SET": 2, "APPEND": 9, "QUEUE_PUSH": 14}.items():
        for name, length in values.items():
            key = f"/{op.lower()}_value_length_{name}_closes/k"
            single(key[1:-2], op, bytes([byte]) + blob(key) + u64(length), b"", True, ["limit"], answers=NO_LIMITS)
    key = "/multi_set_value_length_closes/k"
    single(key[1:-2], "MULTI_SET", b"\x0b" + u64(1) + blob(key) + u64((8 << 20) + 1), b"", True, ["limit"],
           answers=NO_LIMITS)
    # The last ones that are accepted: the server waits for the rest.
    accepted = {"key_length": ("GET", b"\x03" + u64(8192)), "value_length": ("SET", b"\x01" + blob("/k") + u64(8 << 20)),
                "key_count": ("CHECK", b"\x05" + u64(131072))}
    for name, (op, request) in accepted.items():
        several(f"{name}_limit_is_accepted", op, [on("A", send=request), on("A", silent=0.2), on("A", close=True)],
                HALF)


def numbers():
    texts = {"hexadecimal": (b"0x10", 0), "decimal_point": (b"1.5", 1), "exponent": (b"1e3", 1),
             "zero_byte": (b"5\x006", 5), "white_space": (b"\n\t 4", 4), "minus_zero": (b"-0", 0)}
    for name, (text, number) in texts.items():
        key = f"/add_on_{name}/k"
        single(key[1:-2], "ADD", add(key, 1) + get(key), i64(number + 1) + blob(str(number + 1)),
               setup=[set_(key, text)])
    for name, text in {"two_signs": b"--1", "space_after_sign": b"- 1", "leading_zero_byte": b"\x005",
                       "below_range": b"-9223372036854775809"}.items():
        key = f"/add_on_{name}_closes/k"
        single(key[1:-2], "ADD", add(key, 1), b"", True, setup=[set_(key, text)])
    key = "/add_underflow_wraps/k"
    single(key[1:-2], "ADD", add(key, -(1 << 63)) + add(key, -1), i64(-(1 << 63)) + i64((1 << 63) - 1))


def unknown_commands():
    for byte in (0x14, 0x40, 0x7F):
        single(f"unknown_op_{byte}_closes", "-", bytes([byte]), b"", True)


def races():
    def race(name, op, start, end, answers=None):
        steps = []
        for round_ in range(10):
            key = f"/{name}/{round_}"
            steps += [on("A", send=start(key), fence=True), on("B", send=end(key)), on("A", send=CANCEL),
                      on("A", recv_one_of=["01", "0001"], fence=True)]
        several(name, op, steps, answers, "the answer and the cancel cross: the answer comes first, or not at all")

    race("cancel_crosses_set", "CANCEL_WAIT", wait, lambda key: set_(key, "1"))
    race("cancel_crosses_append", "CANCEL_WAIT", wait, lambda key: b"\x09" + blob(key) + blob("1"))
    race("cancel_crosses_multi_set", "CANCEL_WAIT", wait, lambda key: b"\x0b" + u64(1) + blob(key) + blob("1"))
    race("cancel_crosses_push", "CANCEL_WAIT", wait, lambda key: push(key, "1"))
    race("cancel_crosses_write_to_barrier", "BARRIER", lambda key: barrier(key, 2), lambda key: set_(key, "9"))
    single("cancel_twice", "CANCEL_WAIT", CANCEL + CANCEL, b"\x01\x01")
    key = "/cancel_after_answer/k"
    single(key[1:-2], "CANCEL_WAIT", wait(key) + CANCEL, b"\x00\x01", setup=[set_(key, "1")])
    keys_ = "/cancel_one_of_two_keys/a", "/cancel_one_of_two_keys/b"
    several("cancel_one_of_two_keys", "CANCEL_WAIT", [
        on("A", send=wait(*keys_), fence=True), on("B", send=set_(keys_[0], "1"), fence=True),
        on("A", send=CANCEL), on("A", recv=b"\x01"), on("B", send=set_(keys_[1], "1"), fence=True),
        on("A", fence=True), on("A", send=wait(*keys_)), on("A", recv=b"\x00", fence=True)])


def waits():
    name = "waiters_are_served_in_order"
    key = f"/{name}/k"
    waiters = "ABCDE"
    several(name, "WAIT", [on(c, send=wait(key), fence=True) for c in waiters]
            + [on("S", send=set_(key, "1") + set_(key, "2"), fence=True)]
            + [on(c, recv=b"\x00", fence=True) for c in waiters], note="each gets one answer")
    several("wait_for_ten_keys_of_ten_setters", "WAIT",
            [on("A", send=wait(*[f"/wait_for_ten_keys_of_ten_setters/{n}" for n in range(10)]), fence=True)]
            + [step for n in (9, 3, 0, 7, 1, 8, 2, 6, 4) for step in (
                on("B", send=set_(f"/wait_for_ten_keys_of_ten_setters/{n}", "1"), fence=True), on("A", fence=True))]
            + [on("B", send=set_("/wait_for_ten_keys_of_ten_setters/5", "1"), fence=True), on("A", recv=b"\x00", fence=True)])
    name = "thirty_two_connections"
    key, gate = f"/{name}/k", f"/{name}/barrier"
    several(name, "WAIT", [on("C", times=32, send=wait(key), fence=True), on("S", send=set_(key, "1"), fence=True),
                           on("C", times=32, recv=b"\x00", fence=True)])
    several("barrier_of_thirty_two", "BARRIER", [
        on("C", times=31, send=barrier(gate, 32), fence=True), on("S", send=barrier(gate, 32)), on("S", recv=b"\x00"),
        on("C", times=31, recv=b"\x00", fence=True)])


def queues():
    key = "/queue_first_in_first_out/q"
    elements = ["a", "", "ccc", "dd", "e"]
    single(key[1:-2], "QUEUE_POP", b"".join(push(key, it) for it in elements) + pop(key) * 6,
           b"".join(u64(5 - n) + blob(it) for n, it in enumerate(elements)) + u64(0))
    name = "pushes_wake_in_order"
    key = f"/{name}/q"
    steps = [on(c, send=wait(key), fence=True) for c in "ABC"]
    for index, c in enumerate("ABC"):
        steps += [on("S", send=push(key, str(index)), fence=True), on(c, recv=b"\x00")]
        steps += [on(other, fence=True) for other in "ABC"[index + 1:]]
        steps += [on(c, send=pop(key)), on(c, recv=u64(1) + blob(str(index)), fence=True)]
    several(name, "QUEUE_PUSH", steps)
    name = "element_is_taken_before_the_waiter"
    key = f"/{name}/q"
    several(name, "QUEUE_POP", [on("A", send=wait(key), fence=True), on("B", send=push(key, "1") + pop(key)),
                                on("B", recv=u64(1) + blob("1")), on("A", recv=b"\x00"), on("A", send=pop(key)),
                                on("A", recv=u64(0), fence=True)])


def barriers():
    for size in (3, 4, 5):
        name = f"barrier_of_{size}_in_turn"
        key = f"/{name}/b"
        others = [chr(ord("A") + n) for n in range(size - 1)]
        steps = [on(c, send=barrier(key, size), fence=True) for c in others]
        steps += [on(c, fence=True) for c in others]
        steps += [on("Z", send=barrier(key, size)), on("Z", recv=b"\x00")]
        steps += [on(c, recv=b"\x00", fence=True) for c in reversed(others)]
        several(name, "BARRIER", steps + [on("Z", send=get(key)), on("Z", recv=blob(str(size)))])
    name = "barriers_of_two_keys_are_apart"
    a, b = f"/{name}/a", f"/{name}/b"
    several(name, "BARRIER", [
        on("A", send=barrier(a, 2), fence=True), on("B", send=barrier(b, 2), fence=True), on("A", fence=True),
        on("C", send=barrier(b, 2)), on("C", recv=b"\x00"), on("B", recv=b"\x00", fence=True), on("A", fence=True),
        on("C", send=barrier(a, 2)), on("C", recv=b"\x00"), on("A", recv=b"\x00", fence=True)])
    name = "barrier_of_a_larger_size_waits"
    key = f"/{name}/b"
    several(name, "BARRIER", [
        on("A", send=barrier(key, 2), fence=True), on("B", send=barrier(key, 3), fence=True), on("A", fence=True),
        on("C", send=barrier(key, 3)), on("C", recv=b"\x00"), on("A", recv=b"\x00"), on("B", recv=b"\x00")])


def lists():
    names = [f"/list_of_two_hundred/{n}" for n in range(200)]
    pairs = b"".join(blob(name) + blob(str(n)) for n, name in enumerate(names))
    single("list_of_two_hundred", "MULTI_SET", b"\x0b" + u64(200) + pairs + b"\x0a" + keys(*names) + check(*names),
           b"".join(blob(str(n)) for n in range(200)) + b"\x00")
    single("reply_of_nothing", "MULTI_GET", b"\x0a" + keys("/reply_of_nothing/a", "/reply_of_nothing/b"),
           u64(0) + u64(0), answers=MISSING)
    key = "/append_five_times/k"
    single(key[1:-2], "APPEND", b"".join(b"\x09" + blob(key) + blob("x" * n) for n in range(5)) + get(key),
           blob("x" * 10))
    key = "/delete_then_add/k"
    single(key[1:-2], "DELETE_KEY", add(key, 5) + b"\x08" + blob(key) + add(key, 1), i64(5) + i64(1) + i64(1))


for part in (hostile_lengths, numbers, unknown_commands, races, waits, queues, barriers, lists):
    part()
path = pathlib.Path(__file__).with_name("generated.jsonl")
path.write_text("".join(json.dumps({k: v for k, v in it.items() if v not in (None, [])}) + "\n" for it in CASES))
