# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Writes the importer's table of the `nn` dialect, meshwright/_nn.py, from TableGen's records.

    llvm-tblgen --dump-json dialects/Nn/NnTable.td ... -o nn.json
    python write_op_table.py nn.json _nn.py

The table has, of each op, its operands, attributes and results, its traits, and its printed form. The
form is the op's assembly format, taken apart:

    ("word", text)             a keyword or a sign
    ("value", name)            an operand, or an attribute
    ("group", anchor, parts)   parts that are printed if the operand or the attribute is there
    ("attributes",)            the dictionary of the attributes that the form does not name
    ("type", name)             the type of an operand, a result or a type attribute
    ("signature", from, to)    the types of operands and of results; names, or None for all of them
"""

import json
import pathlib
import pprint
import re
import sys

HEAD = '''# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The element types and the ops of the nn dialect. Written by python/write_op_table.py from
dialects/Nn/*.td, and described there."""

'''

#: Kinds of attributes, by the records that define them.
KINDS = {
    "ArrayAttr": "axes",
    "DenseI64ArrayAttr": "ints",
    "I64ArrayAttr": "i64s",
    "ElementsAttr": "elements",
    "F64Attr": "f64",
    "FlatSymbolRefAttr": "symbol",
    "I64Attr": "i64",
    "StrArrayAttr": "strings",
    "StrAttr": "string",
    "SymbolNameAttr": "symbol",
    "TypeAttrOf": "type",
    "TypedAttrInterface": "number",
    "UnitAttr": "unit",
}
TOKEN = re.compile(
    r"\s*(?:`(?P<word>[^`]*)`|\$(?P<value>\w+)(?P<anchor>\^?)|(?P<open>\()|(?P<close>\)\?)"
    r"|functional-type\((?P<signature>[^)]*)\)|type\(\$(?P<type>\w+)\)|(?P<attributes>attr-dict\b))"
)


class Unknown(Exception):
    """A record that the table has no word for."""


def parse(text: str) -> tuple:
    """An assembly format as parts."""
    stack, anchors, at = [[]], [], 0
    text = text.strip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise Unknown(f"the assembly format at '{text[at:].strip()}'")
        at = match.end()
        if match["open"]:
            stack.append([])
            anchors.append(None)
        elif match["close"]:
            parts = tuple(stack.pop())
            stack[-1].append(("group", anchors.pop(), parts))
        elif match["word"] is not None:
            stack[-1].append(("word", match["word"]))
        elif match["value"]:
            stack[-1].append(("value", match["value"]))
            if match["anchor"]:
                anchors[-1] = match["value"]
        elif match["type"]:
            stack[-1].append(("type", match["type"]))
        elif match["signature"]:
            ends = [part.strip() for part in match["signature"].split(",")]
            stack[-1].append(("signature", *(e[1:] if e.startswith("$") else None for e in ends)))
        else:
            stack[-1].append(("attributes",))
    return tuple(stack[0])


def kind_of(records, record):
    """The kind of an attribute; the words of an enum are their own kind."""
    if "enum" in record:
        cases = records[record["enum"]["def"]]["enumerants"]
        return tuple(records[case["def"]]["str"] for case in cases)
    names = [record["!name"], *reversed(record["!superclasses"])]
    if "OptionalAttr" in names:
        return kind_of(records, records[record["baseAttr"]["def"]])
    for name in names:
        if name in KINDS:
            return KINDS[name]
    raise Unknown(f"the attribute kind {record['!name']}")


def count_of(record) -> str:
    """How many values an operand or a result stands for: one, one or none, any number."""
    supers = record["!superclasses"]
    return "?" if "Optional" in supers else "*" if "Variadic" in supers else "1"


def describe(records, op):
    operands, attributes = {}, {}
    for argument, name in op["arguments"]["args"]:
        record = records[argument["def"]]
        if "AttrConstraint" in record["!superclasses"]:
            attributes[name] = kind_of(records, record)
        else:
            operands[name] = count_of(record)
    traits = [records[trait["def"]] for trait in op["traits"]]
    return {
        "operands": operands,
        "attributes": attributes,
        "results": {name: count_of(records[result["def"]]) for result, name in op["results"]["args"]},
        "classes": [name for name in op["!superclasses"] if name.startswith("Nn_")],
        "traits": [trait["!name"] for trait in traits if not trait["!anonymous"]],
        "form": parse(op["assemblyFormat"]),
    }


def main():
    records = json.loads(pathlib.Path(sys.argv[1]).read_text())
    ops = {}
    for name in records["!instanceof"]["Op"]:
        op = records[name]
        try:
            ops[op["opName"]] = describe(records, op)
        except Unknown as what:
            sys.exit(f"error: nn.{op['opName']} has {what}, which python/write_op_table.py does not know")
    floats = tuple(t["def"].lower() for t in records["Nn_Float"]["allowedTypes"])
    text = HEAD + f"FLOATS = {floats!r}\n"
    text += f"OPS = {pprint.pformat(dict(sorted(ops.items())), width=120, compact=True, sort_dicts=False)}\n"
    pathlib.Path(sys.argv[2]).write_text(text)


if __name__ == "__main__":
    main()
