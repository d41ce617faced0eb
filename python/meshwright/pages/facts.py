# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The facts of a page: launches, buffers and layouts of an entry's program, and the report beside them."""

import math
import re
from collections import Counter
from dataclasses import dataclass, field

from ..importer.graph.layouts import Mesh, Sharding, read_mesh, read_sharding, replicated
from ..tensors import ELEMENT_TYPES
from .generic import Op, Place, elements, read_module, table, unquoted


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


@dataclass(slots=True)
class Buffer:
    """A result of a launch in the arena, and the launches at which it is alive, first and last."""

    name: str
    launch: int
    offset: int
    tensor: Tensor
    last: int
    is_sent: bool = False

    @property
    def bytes(self) -> int:
        return self.tensor.bytes


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

    Times are None where the report has none.
    """

    number: int
    kind: str
    ops: list[str]
    place: Place
    stream: int
    operands: list[str]
    axes: list[str] = field(default_factory=list)
    role: str = ""
    wait: int = 0
    #: The launches that make its operands, and the bytes of its results.
    makers: list[int] = field(default_factory=list)
    bytes: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    seconds: float | None = None
    start: float | None = None
    exposed: float | None = None
    flops: float | None = None
    share: float | None = None
    measured: Measured | None = None

    @property
    def title(self) -> str:
        where = self.place.name or (f"{self.place.file}:{self.place.line}" if self.place.file else "")
        return " at ".join(filter(None, [self.ops[-1] if self.ops else self.kind, where]))


@dataclass(slots=True)
class Layout:
    """Tensors of one pattern: equal types and layouts in all layers."""

    pattern: str
    names: list[str]
    role: str
    whole: Tensor
    local: Tensor
    sharding: Sharding

    def of(self, names: list[str]) -> "Layout":
        """The layout of some of the tensors."""
        return Layout(joined_names(names), names, self.role, self.whole, self.local, self.sharding)

    @property
    def text(self) -> str:
        """`[{"tp"}, {}]`."""
        return self.sharding.text().removeprefix("<@mesh, ").removesuffix(">")


@dataclass(slots=True)
class Facts:
    report: dict
    mesh: Mesh
    layouts: list[Layout]
    launches: list[Launch]
    #: Bytes of the arena, and of the largest set of buffers that are needed at one time.
    arena: int
    live: int
    #: The name of the weight that attention's queries come from.
    query: str | None
    entry: str
    #: The weights by the lines of the program at which they are declared.
    weight_places: dict[Place, str]
    #: Functions of the call besides the entry's own, whose launches the page does not show.
    steps: int = 0
    #: The options of `parallelize` as the user gave them.
    options: dict = field(default_factory=dict)
    #: The numbers that the mesh states for the link of an axis: {"host": {"bandwidth": "5.0e10"}}.
    links: dict[str, dict[str, str]] = field(default_factory=dict)
    #: The events of a traced run.
    spans: list = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return self.report["ranks"]

    @property
    def has_times(self) -> bool:
        return bool(self.launches) and all(launch.seconds is not None for launch in self.launches)

    def layout(self, name: str) -> Layout | None:
        return next((layout for layout in self.layouts if name in layout.names), None)


def read_facts(text: str, report: dict, entry: str, constants=(), options=None) -> Facts:
    """The facts of an entry of a scheduled program in the generic form."""
    module = read_module(text)
    ops = module.regions[0][0].ops
    mesh_text = next((op.attributes["mesh"] for op in ops if op.name == "dist.mesh"), "#dist.mesh<[]>")
    mesh = read_mesh(mesh_text)
    functions = [op for op in ops if op.name == "func.func" and op.regions[0]]
    function = next((f for f in functions if unquoted(f.attributes["sym_name"]) == entry), functions[0])
    reader = _Function(function)
    reader.read()
    roles = {unquoted(op.attributes["sym_name"]): unquoted(op.attributes.get("role", '"state"'))
             for op in ops if op.name == "nn.state"}
    places = _weight_places(function, roles)
    _name_collectives(reader.launches, places, report["collectives"])
    _add_times(reader.launches, report.get("launches"))
    number = lambda name: int(function.attributes.get(name, "0").split()[0])
    return Facts(
        report, mesh, _layouts(function, mesh, roles), reader.launches, number("rt.arena"), number("rt.live"),
        reader.query(_names(function), constants), entry, places,
        steps=max(0, function.attributes.get("nn.call", "").count("@") - 1),
        options=dict(options or {}), links=_links(mesh_text),
    )


def _links(mesh: str) -> dict[str, dict[str, str]]:
    """The numbers of links in `#dist.mesh<["host"=2 {bandwidth = 5.0e10}, "tp"=8], device = "h100">`."""
    found = {}
    axes = elements("[" + mesh[mesh.index("<") + 1 : mesh.rindex(">")] + "]")
    for axis in elements(axes[0]) if axes else ():
        name, _, link = axis.partition("{")
        numbers = table("{" + link) if link else {}
        numbers = {key: value for key, value in numbers.items() if key in ("bandwidth", "latency")}
        if numbers:
            found[unquoted(name.partition("=")[0].strip())] = numbers
    return found


def read_tensor(text: str) -> Tensor | None:
    """`tensor<4x8xf32>`; None for other types."""
    if not text.startswith("tensor<"):
        return None
    *shape, dtype = text[len("tensor<") : -1].split(",")[0].split("x")
    return Tensor(tuple(int(n) if n.isdigit() else 0 for n in shape), dtype)


class _Function:
    """Reads the launches of a scheduled function, and where each value is needed."""

    def __init__(self, function: Op):
        self.block = function.regions[0][0]
        self.launches: list[Launch] = []
        #: The buffer in which a value is, by the value's name; views and waits share one.
        self.buffers: dict[str, Buffer] = {}
        self.futures: dict[str, tuple[Launch, list[Buffer | None]]] = {}
        self.makers: dict[str, tuple[Op, int]] = {}
        #: The launch that makes a value.
        self.made: dict[str, int] = {}

    def read(self):
        for op in self.block.ops:
            for k, result in enumerate(op.results):
                self.makers[result] = op, k
            if op.name in ("rt.kernel", "rt.start"):
                self._launch(op)
            elif op.name == "rt.wait":
                self._wait(op)
            elif op.name == "func.return":
                self._use(op, len(self.launches) - 1)
            elif op.results and op.operands:  # a view
                buffer = self.buffers.get(op.operands[0])
                if buffer is not None:
                    self.buffers.update(dict.fromkeys(op.results, buffer))
                if op.operands[0] in self.made:
                    self.made.update(dict.fromkeys(op.results, self.made[op.operands[0]]))

    def _use(self, op: Op, launch: int):
        for operand in op.operands:
            if operand in self.buffers:
                buffer = self.buffers[operand]
                buffer.last = max(buffer.last, launch)

    def _launch(self, op: Op):
        number = len(self.launches)
        inner = [o for o in op.regions[0][0].ops if o.name != "rt.yield"]
        is_kernel = op.name == "rt.kernel"
        launch = Launch(
            number, "kernel" if is_kernel else "collective", [o.name for o in inner], op.place,
            0 if is_kernel else _integer(op.attributes.get("stream", "1")), op.operands, wait=number,
            makers=sorted({self.made[v] for v in op.operands if v in self.made}),
        )
        self.made.update(dict.fromkeys(op.results, number))
        self.launches.append(launch)
        self._use(op, number)
        if not is_kernel:
            # dist.* states the axes in which the collective travels; other ops do not.
            axes = [a for o in inner for a in _axes(o.attributes.get("axes", ""))]
            launch.axes = list(dict.fromkeys(axes))
            launch.role = next((r for o in inner if (r := _role(o.attributes.get("role", "")))), "")
        types = op.outputs if is_kernel else elements(op.outputs[0].removeprefix("!rt.future"))
        tensors = [read_tensor(t) for t in types]
        launch.bytes = sum(t.bytes for t in tensors if t)
        offsets = elements(op.attributes.get("offsets", "[]"))
        over = [unquoted(t) for t in elements(op.attributes.get("over", "[]"))]
        made = []
        for k, tensor in enumerate(tensors):
            if tensor is None or k >= len(offsets) or (k < len(over) and over[k]):
                made.append(None)
                continue
            name = op.results[k] if is_kernel else f"{op.results[0]}, result {k}"
            made.append(Buffer(name, number, int(offsets[k]), tensor, number, not is_kernel))
        launch.buffers = [b for b in made if b]
        if is_kernel:
            self.buffers.update({r: b for r, b in zip(op.results, made) if b})
        else:
            self.futures[op.results[0]] = launch, made

    def _wait(self, op: Op):
        launch, made = self.futures[op.operands[0]]
        launch.wait = len(self.launches)
        self.made.update(dict.fromkeys(op.results, launch.number))
        last = max(launch.number, launch.wait - 1)
        for operand in launch.operands:
            if operand in self.buffers:
                self.buffers[operand].last = max(self.buffers[operand].last, last)
        for result, buffer in zip(op.results, made):
            if buffer:
                buffer.last = max(buffer.last, last)
                self.buffers[result] = buffer

    def query(self, names: dict[str, str], constants) -> str | None:
        """The weight that the queries of the first attention are a product with: the nearest
        parameter of two or more dimensions on the way back from them."""
        for op in self.block.ops:
            for inner in op.walk():
                if "attention" in inner.name and len(inner.operands) >= 3:
                    return self._nearest_weight(op, inner, names, set(constants))
        return None

    def _nearest_weight(self, launch, attention, names, constants):
        front, seen = [(launch, attention.operands[0])], set()
        types = dict(zip(self.block.arguments, self.block.types))
        while front:
            following = []
            for op, value in front:
                if (id(op), value) in seen:
                    continue
                seen.add((id(op), value))
                if value in names:
                    tensor = read_tensor(types[value])
                    is_constant = names[value] in constants or names[value].startswith("constant.")
                    if len(tensor.shape) >= 2 and not is_constant:
                        return names[value]
                    continue
                following += self._behind(op, value)
            front = following
        return None

    def _behind(self, op, value):
        """The operands of a value's op, each with the launch in which it is; None outside launches."""
        if op is not None:
            block = op.regions[0][0]
            if value in block.arguments:
                return [(None, op.operands[block.arguments.index(value)])]
            inner = next((o for o in block.ops if value in o.results), None)
            return [(op, v) for v in inner.operands] if inner else []
        maker, k = self.makers.get(value, (None, 0))
        if maker is None:
            return []
        if maker.regions:
            yielded = maker.regions[0][0].ops[-1].operands
            return [(maker, yielded[min(k, len(yielded) - 1)])]
        return [(None, v) for v in maker.operands]


def _name_collectives(launches: list[Launch], weights: dict[Place, str], collectives):
    """Gives a collective at the line of a weight the name of the weight's module, and one whose op
    states no axes those of the report."""
    axes_of = {}
    for entry in collectives:
        location = entry["location"]
        key = entry["kind"], Place(location["name"], location["file"], location["line"])
        axes_of.setdefault(key, entry["axes"])
    for launch in launches:
        if launch.kind == "collective" and not launch.axes:
            kind = launch.ops[-1].partition(".")[2] if launch.ops else ""
            launch.axes = axes_of.get((kind, launch.place), [])
        if launch.place in weights:
            launch.place = launch.place._replace(name=weights[launch.place].rpartition(".")[0])


def _weight_places(function: Op, roles: dict[str, str]) -> dict[Place, str]:
    """Weights by their lines. A weight's line is that of its optimizer states, too."""
    block, names = function.regions[0][0], _names(function)
    return {place: names[a] for a, place in zip(block.arguments, block.places)
            if a in names and roles.get(names[a], "parameter") == "parameter"}


def _integer(text: str) -> int:
    return int(text.split()[0])


def _axes(text: str) -> list[str]:
    """The names of a list of `#dist.axis_ref<"tp">`."""
    return re.findall(r'"([^"]+)"', text)


def _role(text: str) -> str:
    return text.removeprefix("#dist<role ").removesuffix(">") if text.startswith("#dist<role ") else ""


def _names(function: Op) -> dict[str, str]:
    """The parameters and trained states of a function by its arguments."""
    found = {}
    for argument, attributes in _arguments(function):
        name = attributes.get("nn.parameter") or attributes.get("nn.state")
        if name:
            found[argument] = unquoted(name)
    return found


def _arguments(function: Op):
    attributes = [table(t) for t in elements(function.attributes.get("arg_attrs", "[]"))]
    arguments = function.regions[0][0].arguments
    attributes += [{}] * (len(arguments) - len(attributes))
    return list(zip(arguments, attributes))


def _layouts(function: Op, mesh: Mesh, roles: dict[str, str]) -> list[Layout]:
    types = dict(zip(function.regions[0][0].arguments, function.regions[0][0].types))
    groups: dict[tuple, Layout] = {}
    for argument, attributes in _arguments(function):
        role = next((r for r in ("parameter", "input", "state") if f"nn.{r}" in attributes), None)
        local = read_tensor(types[argument])
        if role is None or local is None:
            continue
        name = unquoted(attributes[f"nn.{role}"])
        role = roles.get(name, role)
        whole = read_tensor(attributes.get("dist.global", types[argument]))
        text = attributes.get("dist.sharding", "")
        key = (generalize(name), role, str(whole), str(local), text)
        if key in groups:
            groups[key].names.append(name)
            continue
        sharding = replicated(whole.shape)
        if text:
            sharding = read_sharding(text, mesh, whole.shape, local.shape, at_run_time=True)
        groups[key] = Layout(key[0], [name], role, whole, local, sharding)
    for layout in groups.values():
        layout.pattern = joined_names(layout.names)
    return list(groups.values())


def _add_times(launches: list[Launch], times):
    """The report's `launches`: one entry for each launch, in order."""
    if not times or len(times) != len(launches):
        return
    for launch, entry in zip(launches, times):
        launch.seconds, launch.start = entry.get("seconds"), entry.get("start_seconds")
        launch.exposed, launch.flops = entry.get("exposed_seconds"), entry.get("flops")
        launch.share = entry.get("ceiling_share")


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


def module_of(place: Place) -> str:
    """The layer of a module's path: the path up to its first number, or its first two names."""
    words = place.name.split(".") if place.name else []
    for k, word in enumerate(words):
        if word.isdigit():
            return ".".join(words[: k + 1])
    return place.name or "outside modules"


@dataclass(slots=True)
class Layer:
    """The launches of one layer. `sent` is what a rank sends by the report."""

    name: str
    kernels: int = 0
    collectives: int = 0
    sent: int = 0
    weights: int = 0
    made: int = 0
    seconds: float | None = None
    exposed: float | None = None
    flops: float | None = None
    share: float | None = None
    #: Of a traced run: seconds of kernels, communication that shows, operations, share of the ceiling.
    measured: float = 0
    measured_exposed: float = 0
    measured_flops: float = 0
    measured_bound: float | None = None

    @property
    def measured_share(self) -> float | None:
        return self.measured_bound / self.measured if self.measured_bound is not None and self.measured else None


def layers(facts: Facts) -> list[Layer]:
    found: dict[str, Layer] = {}
    get = lambda name: found.setdefault(name, Layer(name))
    weighed = Counter()
    for launch in facts.launches:
        layer = get(module_of(launch.place))
        if launch.kind == "kernel":
            layer.kernels += 1
        else:
            layer.collectives += 1
        layer.made += launch.bytes
        for name in ("seconds", "exposed", "flops"):
            value = getattr(launch, name)
            if value is not None:
                setattr(layer, name, (getattr(layer, name) or 0) + value)
        if launch.measured:
            layer.measured_exposed += launch.measured.exposed
            if launch.kind == "kernel":
                layer.measured += launch.measured.seconds
                layer.measured_flops += launch.measured.flops
                if launch.measured.bound is not None:
                    layer.measured_bound = (layer.measured_bound or 0) + launch.measured.bound
        if launch.share is not None and launch.seconds:
            layer.share = (layer.share or 0) + launch.share * launch.seconds
            weighed[layer.name] += launch.seconds
    for entry in facts.report["collectives"]:
        location = entry["location"]
        place = Place(location["name"], location["file"], location["line"])
        if place in facts.weight_places:
            place = Place(facts.weight_places[place].rpartition(".")[0])
        get(module_of(place)).sent += entry["bytes_per_rank"]
    for layout in facts.layouts:
        if layout.role != "input":
            for name in layout.names:
                owner = module_of(Place(name.rpartition(".")[0]))
                if owner in found:
                    found[owner].weights += layout.local.bytes
    for layer in found.values():
        if layer.share is not None:
            layer.share /= weighed[layer.name]
    return list(found.values())


@dataclass(slots=True)
class Peak:
    launch: Launch
    bytes: int
    buffers: list[Buffer]


def peak(facts: Facts) -> Peak | None:
    """The first launch at which most bytes of the arena are needed. Values at one place count once."""
    events: dict[int, list[tuple[int, Buffer]]] = {}
    for launch in facts.launches:
        for buffer in launch.buffers:
            events.setdefault(buffer.launch, []).append((1, buffer))
            events.setdefault(buffer.last + 1, []).append((-1, buffer))
    alive: dict[int, Buffer] = {}
    best, together = None, 0
    for number in range(len(facts.launches)):
        for sign, buffer in events.get(number, ()):
            together += sign * _in_arena(buffer)
            if sign > 0:
                alive[id(buffer)] = buffer
            else:
                alive.pop(id(buffer), None)
        # Values may share a place, so they need at most the sum of their bytes.
        if best is not None and together <= best.bytes:
            continue
        needed = covered(alive.values())
        if best is None or needed > best.bytes:
            best = Peak(facts.launches[number], needed, list(alive.values()))
    if best:
        best.buffers.sort(key=lambda b: -b.bytes)
    return best


def _in_arena(buffer: Buffer) -> int:
    """Offsets are multiples of 64."""
    return -(-buffer.bytes // 64) * 64


def covered(buffers) -> int:
    """Bytes of the arena that buffers take."""
    total = end = 0
    for begin, stop in sorted((b.offset, b.offset + _in_arena(b)) for b in buffers):
        total += max(0, stop - max(begin, end))
        end = max(end, stop)
    return total
