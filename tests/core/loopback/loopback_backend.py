"""A backend that hands every call to the reference, and records which calls it got."""

from __future__ import annotations

from linattn_core.reference_backend.backend import ReferenceBackend


class Loopback(ReferenceBackend):
    """Says that it is faster than the reference; refuses float64 and second derivatives."""

    name = "loopback"
    speed = 5
    double_backward = False
    description = "a test's own"
    refusal = "float64 is not supported, only float32."

    def __init__(self) -> None:
        self.ran: list[str] = []

    def refuses(self, call):
        if str(call.value_dtype) == "torch.float64":
            return self.refusal
        return None

    def attention(self, call):
        self.ran.append("attention")
        return super().attention(call)

    def attention_backward(self, call, *gradients):
        self.ran.append("attention_backward")
        return super().attention_backward(call, *gradients)

    def step(self, call):
        self.ran.append("step")
        return super().step(call)


def broken():
    raise OSError("libnothing.so.1 is missing")
