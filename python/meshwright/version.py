# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The version of this package, and of the things that it was built from."""

from . import _version


class Version(str):
    """The version as text, "0.1.0+git.2e6b018c.llvm.22.1.8.abi.18" (PEP 440), and its parts."""

    #: The version of the project, as "0.1.0".
    project: str
    #: The commit, with ".dirty" behind it if files differed; None for sources without a history.
    commit: str | None
    #: The version of LLVM and MLIR.
    llvm: str
    #: The version of the interface between compiled programs and the runtime, which bundles state.
    abi: int

    def __new__(cls, project, commit, llvm, abi):
        git = f"git.{commit}." if commit else ""
        made = super().__new__(cls, f"{project}+{git}llvm.{llvm}.abi.{abi}")
        made.project, made.commit, made.llvm, made.abi = project, commit, llvm, abi
        return made

    def __getnewargs__(self):
        return self.project, self.commit, self.llvm, self.abi


VERSION = Version(_version.PROJECT, _version.COMMIT, _version.LLVM, _version.ABI)
