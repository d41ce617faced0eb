"""Writes sources of known lengths into the folder given."""

import pathlib
import sys

root = pathlib.Path(sys.argv[1])
functions = """// A comment with { and "
const char *text = R"(
{)";
namespace n {
void Table::fill(int x) {
%s}

struct S {
  int run() const {
%s  }
};
} // namespace n
"""
body = '  if (c == \'{\') { f("}"); }\n'
(root / "lib/Functions.cpp").write_text(functions % (body * 100, body * 99))
(root / "lib/Long.cpp").write_text("\n" * 601)
(root / "lib/Short.cpp").write_text("\n" * 600)
(root / "test/Long.cpp").write_text("\n" * 601)
(root / "python/functions.py").write_text("def walk():\n" + "    pass\n" * 100)
