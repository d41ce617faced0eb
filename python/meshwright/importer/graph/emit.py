# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Prints the importer's graph as a module of the `nn` dialect."""
import math

import torch

from .nodes import FLOATS, TORCH_DTYPES, Graph, Location, Node


def tensor_type(node: Node) -> str:
    return f"tensor<{''.join(f'{d}x' for d in node.shape)}{node.dtype}>"


def quoted(text: str) -> str:
    escaped = "".join(ch if 32 <= ord(ch) < 127 and ch not in '"\\' else
                      "".join(f"\\{b:02X}" for b in ch.encode()) for ch in text)
    return f'"{escaped}"'


def float_text(value: float) -> str:
    """A literal that reads back as the same f64."""
    text = repr(float(value))
    mantissa, e, exponent = text.partition("e")
    return (mantissa if "." in mantissa else mantissa + ".0") + e + exponent


def _bits(value: float, dtype: str) -> str:
    tensor = torch.tensor(value, dtype=TORCH_DTYPES[dtype])
    size = tensor.element_size()
    raw = tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).item()
    return f"0x{raw & (1 << 8 * size) - 1:0{2 * size}X}"


def element(value, dtype: str) -> str:
    if dtype == "i1":
        return "true" if value else "false"
    if dtype not in FLOATS:
        return str(int(value))
    value = torch.tensor(value, dtype=torch.float64).to(TORCH_DTYPES[dtype]).item()
    return float_text(value) if math.isfinite(value) else _bits(value, dtype)


def elements(value, dtype: str) -> str:
    def nested(v):
        return "[" + ", ".join(map(nested, v)) + "]" if isinstance(v, list) else element(v, dtype)
    return nested(value.tolist() if isinstance(value, torch.Tensor) else value)


# The bound on parameters that state none (NnDialect::kParameterMagnitude).
_MAGNITUDE = 1024


def magnitude(tensor: torch.Tensor) -> str | None:
    """A bound on a parameter's entries, where it is above the usual one: a power of two, or
    infinity if one of them is not finite."""
    if tensor.device.type == "meta" or not tensor.is_floating_point() or not tensor.numel():
        return None
    most = max(abs(float(bound)) for bound in torch.aminmax(tensor.detach()))
    if most <= _MAGNITUDE:
        return None
    if not math.isfinite(most):
        return "0x7FF0000000000000"
    exponent = math.ceil(math.log2(most))
    return float_text(2.0 ** exponent if exponent < 1024 else most)


class Emitter:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.names: dict[int, str] = {}
        self.locations: dict[Location, str] = {}

    def location(self, loc: Location) -> str:
        if loc is None:
            return " loc(unknown)"
        if loc not in self.locations:
            self.locations[loc] = f"#loc{len(self.locations)}"
        return f" loc({self.locations[loc]})"

    def run(self) -> str:
        body, arguments = [], []
        order = self.graph.nodes()
        live = {id(n) for n in order}
        parameters = [p for p in self.graph.parameters if id(p) in live]
        for node in self.graph.inputs + parameters:
            self.names[id(node)] = f"%arg{len(arguments)}"
            if node.op == "input":
                attributes = f"nn.input = {quoted(node.attrs['name'])}"
                if "batch" in node.attrs:
                    attributes = f"nn.batch = {str(node.attrs['batch']).lower()}, {attributes}"
            else:
                attributes = f"nn.parameter = {quoted(node.attrs['key'])}"
                if node.attrs["aliases"]:
                    names = ", ".join(map(quoted, node.attrs["aliases"]))
                    attributes = f"nn.aliases = [{names}], {attributes}"
                most = magnitude(node.attrs["tensor"])
                if most is not None:
                    attributes = f"nn.magnitude = {most} : f64, {attributes}"
            arguments.append(f"{self.names[id(node)]}: {tensor_type(node)} {{{attributes}}}")
        identity = 0
        # Reads stand first: they yield the values before the call.
        for node in order:
            if node.op == "state":
                self.names[id(node)] = f"%{identity}"
                body.append(f"    %{identity} = nn.read @{quoted(node.attrs['key'])} : "
                            f"{tensor_type(node)}{self.location(node.loc)}\n")
                identity += 1
        for node in order:
            if node.op in ("input", "parameter", "state"):
                continue
            self.names[id(node)] = f"%{identity}"
            body.append(f"    %{identity} = {self.operation(node, identity)}"
                        f"{self.location(node.loc)}\n")
            identity += 1
        for write in self.graph.writes:
            body.append(f"    nn.write @{quoted(write.state.attrs['key'])}, "
                        f"{self.names[id(write.value)]} : {tensor_type(write.state)}"
                        f"{self.location(write.loc)}\n")
        states = "".join(self._state(s) for s in self.graph.states)
        outputs = self.graph.outputs
        results = ", ".join(f"{tensor_type(o)} {{nn.output = {quoted(n)}}}"
                            for o, n in zip(outputs, self.graph.output_names))
        values = ", ".join(self.names[id(o)] for o in outputs)
        types = ", ".join(tensor_type(o) for o in outputs)
        returned = f"    return {values} : {types}\n" if outputs else "    return\n"
        locations = "".join(self._alias(loc, name) for loc, name in self.locations.items())
        separator = ",\n                     "
        return (f"{locations}module {{\n{states}  func.func @main({separator.join(arguments)})\n"
                f"      -> ({results}) {{\n{''.join(body)}{returned}  }}\n}}\n")

    @staticmethod
    def _state(node: Node) -> str:
        fill = node.attrs.get("fill")
        begin = "" if fill is None else f" {{fill = {element(fill, node.dtype)} : {node.dtype}}}"
        return f"  nn.state @{quoted(node.attrs['key'])}{begin} : {tensor_type(node)}\n"

    @staticmethod
    def _alias(loc: Location, name: str) -> str:
        if not loc.file:
            return f"{name} = loc({quoted(loc.name)})\n"
        place = f"{quoted(loc.file)}:{loc.line}:0"
        return f"{name} = loc({quoted(loc.name)}({place}))\n" if loc.name else \
            f"{name} = loc({place})\n"

    def operation(self, node: Node, identity: int) -> str:
        text, flags = self._syntax(node)
        flags = {**flags, "nn.id": f"{identity} : i64"}
        attributes = ", ".join(k if v is True else f"{k} = {v}" for k, v in flags.items() if v)
        if node.op == "constant":
            return f"nn.constant {{{attributes}}} {text}"
        return f"nn.{node.op}{' ' if text else ''}{text} {{{attributes}}} : {self._types(node)}"

    _SAME_TYPES = {"neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "erf",
                   "floor", "not", "relu", "silu", "tanh", "sigmoid", "gelu", "stop_gradient", "cumsum", "softmax",
                   "constant", "iota"}

    def _types(self, node: Node) -> str:
        if node.op in self._SAME_TYPES:
            return tensor_type(node)
        operands = ", ".join(tensor_type(o) for o in node.operands)
        return f"({operands}) -> {tensor_type(node)}"

    def _syntax(self, node: Node):
        """The operation's own text (operands and attributes), and its attribute dictionary."""
        a, op = node.attrs, node.op
        names = [self.names[id(o)] for o in node.operands]
        plain = ", ".join(names)
        ints = lambda values: "[" + ", ".join(map(str, values)) + "]"
        if op == "constant":
            return f"dense<{elements(a['value'], node.dtype)}> : {tensor_type(node)}", {}
        if op == "compare":
            return f"{a['kind']} {plain}", {}
        if op == "with_derivative":
            return " like ".join(names), {}
        if op == "iota":
            return f"dim {a['dim']}", {}
        if op in ("cumsum", "softmax", "concat", "gather", "take_along", "index_copy", "scatter_add"):
            return f"{plain} dim {a['dim']}", {}
        if op == "cross_entropy":
            flags = {key: f"{a[key]} : i64" if key == "ignore_index" else
                     f"{float_text(a[key])} : f64"
                     for key in ("ignore_index", "label_smoothing") if a[key] is not None}
            return f"{plain} dim {a['dim']}", flags
        if op == "transpose":
            return f"{plain} {ints(a['permutation'])}", {}
        if op == "slice":
            return (f"{plain} starts {ints(a['starts'])} limits {ints(a['limits'])} strides "
                    f"{ints(a['strides'])}"), {}
        if op == "reduce":
            return (f"{a['kind']} {plain} dims {ints(a['dims'])}",
                    {"keep_dims": a["keep_dims"]})
        if op == "gelu":
            return plain, {"approximate_tanh": a["approximate_tanh"]}
        if op == "matmul":
            return plain, {k: a[k] for k in ("transpose_lhs", "transpose_rhs")}
        if op == "linear":
            bias = f" bias {names[2]}" if len(names) > 2 else ""
            return f"{names[0]}, {names[1]}{bias}", {"in_out": a["in_out"]}
        if op == "rms_norm":
            weight = f" weight {names[1]}" if len(names) > 1 else ""
            return (f"{names[0]}{weight} eps {float_text(a['eps'])}",
                    {"unit_offset": a["unit_offset"]})
        if op == "layer_norm":
            rest = iter(names[1:])
            weight = f" weight {next(rest)}" if a["has_weight"] else ""
            bias = f" bias {next(rest)}" if a["has_bias"] else ""
            return f"{names[0]}{weight}{bias} eps {float_text(a['eps'])}", {}
        if op == "dropout":
            x, index, seed, step = names
            return (f"{x} at {index} seed {seed} step {step} probability "
                    f"{float_text(a['probability'])} stream {a['stream']}"), {}
        if op == "random":
            index, seed, step = names
            return f"at {index} seed {seed} step {step} stream {a['stream']}", {}
        if op == "rotary":
            return plain, {"interleaved": a["interleaved"]}
        if op == "attention":
            rest = iter(names[3:])
            padding = f" key_padding {next(rest)}" if a["has_key_padding"] else ""
            bias = f" bias {next(rest)}" if a["has_bias"] else ""
            at = f" positions {next(rest)}, {next(rest)}" if a["has_positions"] else ""
            lengths = f" kv_lengths {next(rest)}" if a["has_lengths"] else ""
            drop = ""
            if a["has_dropout"]:
                drop = f" drop_at {next(rest)}, {next(rest)} seed {next(rest)} step {next(rest)}"
            flags = {"causal": a["causal"]}
            if drop:
                flags["dropout"] = f"{float_text(a['dropout'])} : f64"
                flags["stream"] = f"{a['stream']} : i64"
            for key in ("window_left", "window_right"):
                if a[key] is not None:
                    flags[key] = f"{a[key]} : i64"
            if a["soft_cap"] is not None:
                flags["soft_cap"] = f"{float_text(a['soft_cap'])} : f64"
            return (f"{names[0]}, {names[1]}, {names[2]}{padding}{bias}{at}{lengths}{drop} scale "
                    f"{float_text(a['scale'])}"), flags
        return plain, {}


def emit(graph: Graph) -> str:
    return Emitter(graph).run()
