# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""A reader of MLIR's generic form with locations, which `_core` prints.

It knows the form alone: no dialect and no attribute. An attribute stays the text that it is.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_WORD = re.compile(
    r'"(?:[^"\\]|\\.)*"|->|//[^\n]*|[%^#!@]?[\w$.+]+(?:[-#][\w$.+]+)*|[^\s]', re.ASCII
)
_OPEN, _CLOSE = {"(", "[", "{", "<"}, {")", "]", "}", ">"}


class Place(NamedTuple):
    """A location: the path of the module, and the line of the source."""

    name: str = ""
    file: str = ""
    line: int = 0


@dataclass(slots=True)
class Op:
    """An operation. `attributes` has the texts of properties and attributes by their names."""

    name: str
    #: "%4" of one result; "%4#0", "%4#1", ... of several.
    results: list[str]
    operands: list[str]
    attributes: dict[str, str]
    regions: list[list["Block"]]
    #: The types of operands and results.
    inputs: list[str]
    outputs: list[str]
    place: Place

    def walk(self):
        """The operations in the regions, each before the ones in it."""
        for region in self.regions:
            for block in region:
                for op in block.ops:
                    yield op
                    yield from op.walk()


@dataclass(slots=True)
class Block:
    arguments: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    #: The locations of the arguments.
    places: list[Place] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)


def read_module(text: str) -> Op:
    """The module of a text. Raises ValueError for another form."""
    return _Reader(text).module()


def unquoted(text: str) -> str:
    """The string of an attribute's text; "" of no text."""
    if len(text) < 2 or text[0] != '"':
        return text
    return re.sub(
        r"\\([0-9A-Fa-f]{2}|.)",
        lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1],
        text[1:-1],
    )


def elements(text: str) -> list[str]:
    """The elements of the text of a list: `[a, b]`, `array<i64: 1, 2>` or a table `{a = b}`."""
    text = text.strip()
    if text.startswith("array<"):
        return [part.strip() for part in text[:-1].partition(":")[2].split(",") if part.strip()]
    return _split(text[1:-1])


def table(text: str) -> dict[str, str]:
    """The entries of the text of a dictionary."""
    found = {}
    for entry in elements(text):
        name, _, value = entry.partition("=")
        found[unquoted(name.strip())] = value.strip()
    return found


def _split(text: str) -> list[str]:
    """The parts between commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for found in _WORD.finditer(text):
        word = found[0]
        if word in _OPEN:
            depth += 1
        elif word in _CLOSE:
            depth -= 1
        elif word == "," and depth == 0:
            parts.append(text[begin : found.start()].strip())
            begin = found.end()
    parts.append(text[begin:].strip())
    return [part for part in parts if part]


class _Reader:
    def __init__(self, text: str):
        #: The texts of locations by their aliases, and the places that were read from them.
        self.aliases: dict[str, str] = {}
        self.places: dict[str, Place] = {"": Place()}
        self.text = self._without_aliases(text)
        found = [word for word in _WORD.finditer(self.text) if not word[0].startswith("//")]
        self.words = [word[0] for word in found] + [""]
        self.starts = [word.start() for word in found] + [len(self.text)]
        self.at = 0

    def _without_aliases(self, text: str) -> str:
        """Reads the lines of aliases, `#loc3 = loc(...)`, which are before and behind the module."""
        rest = []
        for line in text.split("\n"):
            if line.startswith("#loc"):
                name, _, location = line.partition(" = loc(")
                self.aliases[name] = location.rstrip()[:-1]
            else:
                rest.append(line)
        return "\n".join(rest)

    def take(self, word: str | None = None) -> str:
        got = self.words[self.at]
        if (word is not None and got != word) or not got:
            line = self.text.count("\n", 0, self.starts[self.at]) + 1
            raise ValueError(f"line {line}: expected {word or 'more text'!r}, got {got!r}")
        self.at += 1
        return got

    def accept(self, word: str) -> bool:
        if self.words[self.at] == word:
            self.at += 1
            return True
        return False

    def span(self, *ends: str) -> str:
        """The text up to one of these words outside brackets."""
        begin, depth, words = self.at, 0, self.words
        while word := words[self.at]:
            if depth == 0 and word in ends:
                break
            depth += (word in _OPEN) - (word in _CLOSE)
            self.at += 1
        return self.text[self.starts[begin] : self.starts[self.at]].strip()

    def module(self) -> Op:
        if '"builtin.module"' not in self.words:
            raise ValueError("expected a module in the generic form")
        self.at = self.words.index('"builtin.module"')
        return self.op()

    def location_text(self) -> str:
        self.take("loc")
        self.take("(")
        text = self.span(")")
        self.take(")")
        return text

    def place(self, text: str) -> Place:
        found = self.places.get(text)
        if found is None:
            found = self.places[text] = self._place(text)
        return found

    def _place(self, text: str) -> Place:
        if text in self.aliases:
            return self.place(self.aliases[text])
        head, _, rest = text.partition("[")
        if head.startswith(("fused", "callsite")):
            first = _split(rest[:-1])[:1] if head.startswith("fused") else [text[9:-1].split(" at ")[0]]
            return self.place(first[0]) if first else Place()
        if not text.startswith('"'):
            return Place()
        name = _WORD.match(text)[0]
        rest = text[len(name) :]
        if rest.startswith(":"):
            return Place("", unquoted(name), int(re.match(r":(\d+)", rest)[1]))
        inner = self.place(rest[1:-1]) if rest.startswith("(") else Place()
        # The name of an inner location is nearer to the op than that of an outer one.
        return inner._replace(name=unquoted(name)) if not inner.name else inner

    def op(self) -> Op:
        results = []
        while self.words[self.at].startswith("%"):
            name = self.take()
            if self.accept(":"):
                results += [f"{name}#{k}" for k in range(int(self.take()))]
            else:
                results.append(name)
            if not self.accept(","):
                self.take("=")
        name = unquoted(self.take())
        self.take("(")
        operands = []
        while not self.accept(")"):
            operands.append(self.take())
            self.accept(",")
        attributes: dict[str, str] = {}
        if self.accept("["):
            self.span("]")
            self.take("]")
        if self.accept("<"):
            self.attributes(attributes)
            self.take(">")
        regions = self.regions() if self.accept("(") else []
        if self.words[self.at] == "{":
            self.attributes(attributes)
        self.take(":")
        inputs = self.types()
        self.take("->")
        outputs = self.types()
        place = self.place(self.location_text()) if self.words[self.at] == "loc" else Place()
        return Op(name, results, operands, attributes, regions, inputs, outputs, place)

    def attributes(self, into: dict[str, str]):
        self.take("{")
        while not self.accept("}"):
            name = unquoted(self.take())
            into[name] = self.span(",", "}") if self.accept("=") else ""
            self.accept(",")

    def types(self) -> list[str]:
        if self.accept("("):
            found = []
            while not self.accept(")"):
                found.append(self.span(",", ")"))
                self.accept(",")
            return found
        # One type: a word, and brackets behind it.
        begin = self.at
        self.take()
        if self.accept("<"):
            self.span(">")
            self.take(">")
        return [self.text[self.starts[begin] : self.starts[self.at]].strip()]

    def regions(self) -> list[list[Block]]:
        found = []
        while not self.accept(")"):
            self.take("{")
            blocks = [Block()]
            while not self.accept("}"):
                if self.words[self.at].startswith("^"):
                    if blocks[-1].ops or blocks[-1].arguments:
                        blocks.append(Block())
                    self.block_arguments(blocks[-1])
                else:
                    blocks[-1].ops.append(self.op())
            found.append(blocks)
            self.accept(",")
        return found

    def block_arguments(self, block: Block):
        self.take()
        if self.accept("("):
            while not self.accept(")"):
                block.arguments.append(self.take())
                self.take(":")
                block.types += self.types()
                has_place = self.words[self.at] == "loc"
                block.places.append(self.place(self.location_text()) if has_place else Place())
                self.accept(",")
        self.take(":")
