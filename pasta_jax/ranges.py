"""Ranges of numbers from outside, as types: what lies beyond is refused where it is read, by its name."""

from typing import Annotated

from msgspec import Meta

LARGEST_INT = 2**31 - 1  # arrays on devices hold int32

Count = Annotated[int, Meta(ge=0, le=LARGEST_INT)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST_INT)]
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]  # neither infinite nor NaN, nor as float32
AtLeastZero = Annotated[float, Meta(ge=0, le=1e30)]
AboveZero = Annotated[float, Meta(gt=0, le=1e30)]
Share = Annotated[float, Meta(ge=0, le=1)]
Momentum = Annotated[float, Meta(ge=0, lt=1)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]

Lanes = Annotated[int, Meta(ge=1, le=4096)]
Threads = Annotated[int, Meta(ge=1, le=1024)]  # of a request in one step
Widths = Annotated[tuple[Threads, ...], Meta(max_length=16)]  # each compiles a program
Slots = Annotated[int, Meta(ge=1, le=2**20)]
SlotsOrNone = Annotated[int, Meta(ge=0, le=2**20)]
Rounds = Annotated[int, Meta(ge=1, le=10_000)]  # of a measurement
Rows = Annotated[int, Meta(ge=1, le=2**16)]  # of a batch
Length = Annotated[int, Meta(ge=2, le=2**20)]  # tokens
Lengths = Annotated[tuple[Length, ...], Meta(min_length=1, max_length=16)]  # each compiles a program
Records = Annotated[int, Meta(ge=1, le=2**18)]  # held in memory
RecordsOrNone = Annotated[int, Meta(ge=0, le=2**18)]
WordLimits = tuple[Count, Count]  # fewest and most
Dimension = Annotated[int, Meta(ge=0, le=2**17)]  # of a model
Threading = Annotated[int, Meta(ge=1, le=1024)]  # requests to an endpoint at a time
