# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The `nn` dialect, as its TableGen files state it: element types, kinds of ops, and their syntax."""
import functools
import math
from collections.abc import Iterable

from ..._nn import FLOATS, OPS
from ...tensors import ELEMENT_TYPES
from .forms import NUMPY_TYPES, cast

__all__ = ["BINARY", "CODES", "FLOATS", "OPS", "POINTWISE", "UNARY"]

#: Element types that stand for numbers by way of scales.
CODES = frozenset(name for name, element in ELEMENT_TYPES.items() if element.use == "Code")

UNARY = frozenset(name for name, op in OPS.items() if "Nn_Unary" in op["classes"])
BINARY = frozenset(name for name, op in OPS.items() if "Nn_Binary" in op["classes"])
#: Functions of the elements of their operands alone. Random numbers depend on a seed, too.
POINTWISE = frozenset(name for name, op in OPS.items()
                      if "Dist_Elementwise" in op["traits"] and "seed" not in op["operands"])


def operand_names(op: str, count: int, given: Iterable[str] | None = None) -> list[str]:
    """The names of `count` operands of an op. `given` are those of the optional operands that are
    there; without it, they are the first ones."""
    counts = OPS[op]["operands"]
    spare = count - list(counts.values()).count("1")
    names = []
    for name, how in counts.items():
        if how == "*":
            names += [name] * spare
        elif how == "1" or (name in given if given is not None else spare > 0):
            names.append(name)
            spare -= how == "?"
    if len(names) != count:
        raise ValueError(f"nn.{op}: expected the operands {', '.join(names)}, got {count}")
    return names


# Literals.

def tensor_type(shape, dtype: str, routed=None) -> str:
    encoding = ""
    if routed is not None:
        encoding = f", #nn.routed<{routed.choices}{', repeats' if routed.repeats else ''}>"
    return f"tensor<{''.join(f'{d}x' for d in shape)}{dtype}{encoding}>"


def quoted(text: str) -> str:
    escaped = "".join(ch if 32 <= ord(ch) < 127 and ch not in '"\\' else
                      "".join(f"\\{b:02X}" for b in ch.encode()) for ch in text)
    return f'"{escaped}"'


def float_text(value: float) -> str:
    """A literal that reads back as the same f64."""
    text = repr(float(value))
    mantissa, e, exponent = text.partition("e")
    return (mantissa if "." in mantissa else mantissa + ".0") + e + exponent


def element(value, dtype: str) -> str:
    if dtype == "i1":
        return "true" if value else "false"
    if NUMPY_TYPES[dtype].kind == "i":
        return str(int(value))
    number = cast(float(value), dtype)
    if dtype in FLOATS and math.isfinite(number):
        return float_text(number.item())
    size = NUMPY_TYPES[dtype].itemsize
    return f"0x{int(number.view(f'u{size}')):0{2 * size}X}"


def elements(value, dtype: str) -> str:
    """A number, or an array of them."""
    def nested(v):
        return "[" + ", ".join(map(nested, v)) + "]" if isinstance(v, list) else element(v, dtype)
    return nested(value.tolist() if hasattr(value, "tolist") else value)


def _in_form(kind, value, dtype: str, shape) -> str:
    """An attribute where the syntax of an op names it."""
    if isinstance(kind, tuple):
        if value not in kind:
            raise ValueError(f"the attribute: expected one of {', '.join(kind)}, got '{value}'")
        return value
    if kind == "ints":
        return f"[{', '.join(map(str, value))}]"
    if kind == "strings":
        return f"[{', '.join(map(quoted, value))}]"
    if kind == "axes":
        return f"[{', '.join(f'#dist.axis_ref<{quoted(axis)}>' for axis in value)}]"
    if kind == "elements":
        return f"dense<{elements(value, dtype)}> : {tensor_type(shape, dtype)}"
    return {"i64": str, "f64": float_text, "string": quoted, "symbol": lambda v: f"@{quoted(v)}",
            "type": lambda v: tensor_type(*v)}[kind](value)


def _in_dictionary(kind, name: str, value, dtype: str) -> str:
    """An attribute of an op's dictionary."""
    if kind == "unit":
        return name
    text = {"i64": lambda: f"{value} : i64", "f64": lambda: f"{float_text(value)} : f64",
            "i64s": lambda: f"[{', '.join(map(str, value))}]",
            "string": lambda: quoted(value), "number": lambda: f"{element(value, dtype)} : {dtype}"}[kind]()
    return f"{name} = {text}"


def operation(op: str, operands: list[tuple], results: list[tuple], attributes: dict, given=None,
              extra: str = "") -> str:
    """The text of an operation, behind the names of its results.

    Operands are (name, shape, element type), results (shape, element type); both may have a routing
    behind these. `extra` stands at the end of the dictionary.
    """
    table = OPS[op]
    kinds, named, text = table["attributes"], _named_by(op), f"nn.{op}"
    values: dict[str, list[tuple]] = {}
    for name, operand in zip(operand_names(op, len(operands), given), operands):
        values.setdefault(name, []).append(operand)
    for name in attributes:
        if name not in kinds:
            raise ValueError(f"nn.{op} has no attribute '{name}'")
    shape, dtype = results[0][:2] if results else (None, None)

    def types_of(name: str | None, all_of: list[tuple]) -> list[str]:
        chosen = all_of if name is None else values[name] if name in values else results
        return [tensor_type(*(value if chosen is results else value[1:])) for value in chosen]

    def add(part: str):
        nonlocal text
        text += part if part == "," else f" {part}"

    def write(parts):
        for what, *of in parts:
            if what == "word":
                add(of[0])
            elif what == "value":
                name = of[0]
                if kinds.get(name) == "unit":
                    continue  # the word beside it says that it is set
                if name in kinds:
                    add(_in_form(kinds[name], attributes[name], dtype, shape))
                else:
                    add(", ".join(value[0] for value in values.get(name, ())))
            elif what == "group":
                if of[0] in values or _is_set(attributes.get(of[0])):
                    write(of[1])
            elif what == "attributes":
                entries = [_in_dictionary(kinds[name], name, value, dtype)
                           for name, value in attributes.items()
                           if name not in named and _is_set(value)]
                if entries or extra:
                    add("{" + ", ".join([*entries, extra] if extra else entries) + "}")
            elif what == "type":
                add(types_of(of[0], results)[0])
            else:
                given_types, result_types = types_of(of[0], operands), types_of(of[1], results)
                returned = ", ".join(result_types)
                add(f"({', '.join(given_types)}) -> " +
                    (returned if len(result_types) == 1 else f"({returned})"))

    write(table["form"])
    return text


def _is_set(value) -> bool:
    return value is not None and value is not False


@functools.cache
def _named_by(op: str) -> set[str]:
    """The operands and attributes that the form of an op names."""
    return _named(OPS[op]["form"])


def _named(parts) -> set[str]:
    return {name for what, *of in parts
            for name in ([of[0]] if what == "value" else _named(of[1]) if what == "group" else [])}
