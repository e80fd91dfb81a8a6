"""Compiled code in the wheel, for one kind of machine, where it is asked for: OMNISET_BINARIES=x86_64 (or aarch64).

Without, the wheel is for any machine, and compiles at first use. The compiler is CXX, or x86_64-linux-gnu-g++ (or
aarch64-linux-gnu-g++).
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GLIBC = 28  # 2.28, which PyTorch's own wheels need
# A newer glibc has newer versions of these two, which differ in how errors are told, and which an older one has not.
FIRST = {"x86_64": "2.2.5", "aarch64": "2.17"}
OLDER = '__asm__(".symver exp, exp@GLIBC_{0}\\n.symver log, log@GLIBC_{0}");\n'


class BinariesHook(BuildHookInterface):
    def initialize(self, version, build_data):
        machine = os.environ.get("OMNISET_BINARIES")
        if not machine or version == "editable":
            return
        if machine not in FIRST:
            raise ValueError(f"OMNISET_BINARIES must be one of {', '.join(FIRST)}, it is {machine!r}")
        path = Path(self.root, "src", "omniset", "kernels", "targets.py")
        spec = importlib.util.spec_from_file_location("targets", path)
        targets = importlib.util.module_from_spec(spec)  # without the package, which imports PyTorch
        spec.loader.exec_module(targets)
        self.folder = Path(tempfile.mkdtemp())
        older = self.folder / "older.h"
        older.write_text(OLDER.format(FIRST[machine]), encoding="utf-8")
        compiler = (os.environ.get("CXX") or f"{machine}-linux-gnu-g++").split()
        for target in (name for name, (of, *_) in targets.TARGETS.items() if of == machine):
            file = self.folder / f"{targets.stem(target)}.so"
            smaller = ["-include", str(older), "-Wl,--as-needed", "-s"]
            subprocess.run([*compiler, *targets.compiler_arguments(target, file), *smaller], check=True)
            code = file.read_bytes()
            if b"libstdc++" in code or max(map(int, re.findall(rb"GLIBC_2\.(\d+)", code))) > GLIBC:
                raise RuntimeError(f"{file.name} needs libstdc++, or a glibc newer than 2.{GLIBC}; see: objdump -T")
            build_data["force_include"][str(file)] = f"omniset/kernels/{file.name}"
        build_data.update(pure_python=False, tag=f"py3-none-manylinux_2_{GLIBC}_{machine}")

    def finalize(self, version, build_data, artifact_path):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)
