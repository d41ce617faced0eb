# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The facts of a page: the report in JSON with the launches, buffers and layouts of an entry."""

import math
import re
from dataclasses import dataclass, field

from ..errors import Error
from ..importer.graph.layouts import Mesh, Sharding, read_sharding
from ..tensors import ELEMENT_TYPES

#: The layer of launches that no module has, as the report names it.
OUTSIDE = "outside modules"
#: Places in an arena begin at multiples of so many bytes, and the last of them are padding.
_ALIGNMENT = 64


@dataclass(slots=True)
class Tensor:
    """A type: its shape and its element type."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        bits = ELEMENT_TYPES[self.dtype].bits if self.dtype in ELEMENT_TYPES else 8
        return -(-math.prod(self.shape) * max(bits, 8 if self.dtype == "i1" else bits) // 8)

    def __str__(self):
        return "x".join(map(str, (*self.shape, self.dtype)))


def read_tensor(text: str) -> Tensor:
    """`4x8xf32`."""
    *shape, dtype = text.split("x")
    return Tensor(tuple(map(int, shape)), dtype)


@dataclass(slots=True)
class Buffer:
    """A result of a launch in the arena, and the launches at which it is alive, first and last."""

    launch: int
    tensor: Tensor
    offset: int
    bytes: int
    last: int
    is_sent: bool

    @property
    def place(self) -> int:
        """Bytes of its place in the arena, with padding."""
        return -(-max(self.bytes, 1) // _ALIGNMENT) * _ALIGNMENT


@dataclass(slots=True)
class Measured:
    """A launch in a traced run: means over ranks. `bound` is the least time by the ceilings."""

    seconds: float
    exposed: float
    flops: float
    bound: float | None


@dataclass(slots=True)
class Launch:
    """A kernel or a collective. Stream 0 computes; `wait` is the launch before which it is waited for.

    `bytes` are those that a kernel reads and writes, or that a collective sends.
    """

    number: int
    kind: str
    op: str
    module: str
    file: str
    line: int
    layer: str
    stream: int
    start: float
    seconds: float
    bytes: int
    #: The launches whose results it reads.
    makers: list[int]
    exposed: float = 0.0
    flops: float = 0.0
    #: The least time by the ceilings of the device; None if it states none.
    least: float | None = None
    axes: list[str] = field(default_factory=list)
    role: str = ""
    wait: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    measured: Measured | None = None

    @property
    def is_collective(self) -> bool:
        return self.kind == "collective"

    @property
    def title(self) -> str:
        """`nn.linear at model.layers.0.mlp.up_proj`, or `nn.mul (model.py:12)` outside modules, as the traces of
        runs name it."""
        role = f" role {self.role}" if self.role and self.role != "data" else ""
        if self.module:
            return f"{self.op}{role} at {self.module}"
        place = f" ({self.file.rpartition('/')[2]}:{self.line})" if self.file else ""
        return self.op + role + place


@dataclass(slots=True)
class Layout:
    """Tensors of one pattern: equal types and layouts in all layers."""

    pattern: str
    names: list[str]
    role: str
    whole: Tensor
    local: Tensor
    sharding: Sharding
    #: On a rank.
    bytes: int

    def of(self, names: list[str]) -> "Layout":
        """The layout of some of the tensors."""
        return Layout(joined_names(names), names, self.role, self.whole, self.local, self.sharding, self.bytes)

    @property
    def text(self) -> str:
        """`[{"tp"}, {}]`."""
        return self.sharding.text().removeprefix("<@mesh, ").removesuffix(">")


@dataclass(slots=True)
class Peak:
    """The launch at which most bytes of the arena are needed, and the values alive at it, largest first."""

    launch: Launch
    bytes: int
    buffers: list[Buffer]


@dataclass(slots=True)
class Layer:
    """The launches of one layer. `seconds` are those of kernels, `sent` is what a rank sends."""

    name: str
    kernels: int = 0
    collectives: int = 0
    sent: int = 0
    weights: int = 0
    made: int = 0
    seconds: float = 0.0
    exposed: float = 0.0
    hidden: float = 0.0
    flops: float = 0.0
    least: float | None = None
    #: Of a traced run: seconds of kernels, communication that shows, operations, least seconds.
    measured: float = 0.0
    measured_exposed: float = 0.0
    measured_flops: float = 0.0
    measured_bound: float | None = None

    @property
    def whole(self) -> float:
        """Seconds of kernels and of the communication that shows."""
        return self.seconds + self.exposed

    @property
    def share(self) -> float | None:
        """How near its kernels are to the ceilings of the device."""
        return self.least / self.seconds if self.least is not None and self.seconds else None

    @property
    def measured_share(self) -> float | None:
        return self.measured_bound / self.measured if self.measured_bound is not None and self.measured else None


@dataclass(slots=True)
class Facts:
    report: dict
    mesh: Mesh
    layouts: list[Layout]
    launches: list[Launch]
    layers: list[Layer]
    peak: Peak | None
    #: Bytes of the arena, and of the largest set of buffers that are needed at one time.
    arena: int
    live: int
    #: Seconds of the entry's own function.
    seconds: float
    #: The name of the weight that attention's queries come from.
    query: str | None
    entry: str
    #: Functions of the call besides the entry's own, whose launches the page does not show.
    steps: int = 0
    #: The options of `parallelize` as the user gave them.
    options: dict = field(default_factory=dict)
    #: Bytes per second and seconds of latency of an axis's link; 0 is unknown.
    links: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: Bytes from rank to rank in a call.
    sent: list[tuple[int, int, float]] = field(default_factory=list)
    #: The events of a traced run.
    spans: list = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return self.report["ranks"]

    @property
    def has_times(self) -> bool:
        """False for a program that runs as it is, and on a device without rates."""
        return self.seconds > 0 and bool(self.report.get("communication"))

    @property
    def modules(self) -> list[Layer]:
        """The layers that are modules of the model; all layers of a program without modules."""
        return [layer for layer in self.layers if layer.name != OUTSIDE] or self.layers

    def layout(self, name: str) -> Layout | None:
        return next((layout for layout in self.layouts if name in layout.names), None)


def read_facts(report: dict, options=None) -> Facts:
    """The facts of a report with `program` and `layouts`."""
    program = report.get("program")
    if program is None:
        raise Error("the program cannot be scheduled, so there are no facts for a page")
    mesh = Mesh(dict(report["mesh"]))
    launches = [_launch(k, entry) for k, entry in enumerate(program["launches"])]
    buffers = []
    for entry in program["arena"]["buffers"]:
        owner = launches[entry["launch"]]
        buffers.append(Buffer(owner.number, read_tensor(entry["type"]), entry["offset"], entry["bytes"],
                              entry["last"], owner.is_collective))
        owner.buffers.append(buffers[-1])
    peak = program["arena"]["peak"]
    return Facts(
        report, mesh, _layouts(report["layouts"], mesh), launches, [_layer(entry) for entry in program["layers"]],
        peak and Peak(launches[peak["launch"]], peak["bytes"], [buffers[k] for k in peak["buffers"]]),
        program["arena"]["bytes"], program["arena"]["live_bytes"], program["seconds"], program["query_weight"],
        program["entry"], program["other_functions"], dict(options or {}),
        {link["axis"]: (link["bytes_per_second"], link["latency_seconds"]) for link in program["links"]},
        [(pair["from"], pair["to"], pair["bytes"]) for pair in program["sent"]],
    )


def _launch(number: int, entry: dict) -> Launch:
    return Launch(
        number, entry["kind"], entry["op"], entry["module"], entry["file"], entry["line"], entry["layer"],
        entry["stream"], entry["begin_seconds"], entry["seconds"], entry["bytes"], entry["makers"],
        entry.get("exposed_seconds", 0.0), entry.get("flops", 0.0), entry.get("least_seconds"),
        entry.get("axes", []), entry.get("role", ""), entry.get("wait", number),
    )


def _layer(entry: dict) -> Layer:
    return Layer(
        entry["name"], entry["kernels"], entry["collectives"], entry["sent_bytes"], entry["weight_bytes"],
        entry["written_bytes"], entry["seconds"], entry["exposed_seconds"], entry["hidden_seconds"],
        entry["flops"], entry["least_seconds"],
    )


def _layouts(entries: list[dict], mesh: Mesh) -> list[Layout]:
    groups: dict[tuple, Layout] = {}
    for entry in entries:
        key = (generalize(entry["name"]), entry["role"], entry["global"], entry["local"], entry["sharding"])
        if key in groups:
            groups[key].names.append(entry["name"])
            continue
        whole, local = read_tensor(entry["global"]), read_tensor(entry["local"])
        sharding = read_sharding(f"#dist.sharding<@mesh, {entry['sharding']}>", mesh, whole.shape, local.shape,
                                 at_run_time=True)
        groups[key] = Layout(key[0], [entry["name"]], entry["role"], whole, local, sharding, entry["bytes_per_rank"])
    for layout in groups.values():
        layout.pattern = joined_names(layout.names)
    return list(groups.values())


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def generalize(name: str) -> str:
    """A name without the numbers of layers."""
    return _NUMBER.sub("*", name)


def joined_names(names: list[str]) -> str:
    """`model.layers.{0..3}.mlp` of names that differ in one number; `*` where they differ in several."""
    if len(names) == 1:
        return names[0]
    rows = [[int(n) for n in _NUMBER.findall(name)] for name in names]
    columns = [sorted(set(column)) for column in zip(*rows)]
    parts = iter(columns)
    if sum(len(column) > 1 for column in columns) > 1:
        return generalize(names[0])
    return _NUMBER.sub(lambda _: _range(next(parts)), names[0])


def _range(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{{{numbers[0]}..{numbers[-1]}}}"
    return "{" + ",".join(map(str, numbers)) + "}" if len(numbers) <= 4 else "*"
