"""Reads <cuda.h>, <cudaProfiler.h> and their typedefs: which functions exist, with which prototypes and versions."""

import collections
import pathlib
import re
import subprocess

TWIN = re.compile(r"(.*)_(ptds|ptsz)$")


def _versioned(symbol):
    match = re.search(r"_v(\d+)$", symbol)
    return int(match.group(1)) if match else 1


def public_name(symbol):
    """cuMemAlloc for cuMemAlloc_v2."""
    return re.sub(r"_v\d+$", "", symbol)


def functions(include_dir):
    """Every function of cuda.h: {symbol: argument text}, old versions and twins included."""
    # This macro, meant for NVIDIA's own build, switches off the mapping of names to newest versions.
    source = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <cudaProfiler.h>\n"
    text = subprocess.run(
        ["cc", "-E", "-P", "-x", "c", f"-I{include_dir}", "-"],
        input=source, capture_output=True, text=True, check=True).stdout
    found = {}
    for symbol, args in re.findall(r"\bCUresult\s+(cu[A-Za-z0-9_]+)\s*\(([^;]*?)\)\s*;", text, re.S):
        found[symbol] = re.sub(r"\s+", " ", args).strip()
    return found


def versions(include_dir):
    """{symbol: (since, twin symbol or None, twin's since or None)} for every symbol but twins.

    cudaTypedefs.h declares PFN_<name>_v<version>; the versions of a name in rising order belong to
    the symbols <name>, <name>_v2, ... in rising order (reference: CUDA 13.0, no conflict).
    """
    symbols = functions(include_dir)
    text = "".join(pathlib.Path(include_dir, name).read_text()
                   for name in ("cudaTypedefs.h", "cudaProfilerTypedefs.h"))
    known = collections.defaultdict(set)
    for name, version, suffix in re.findall(r"\bPFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\b", text):
        known[name, bool(suffix)].add(int(version))
    by_name = collections.defaultdict(list)
    twins = {}
    for symbol in symbols:
        match = TWIN.match(symbol)
        if match:
            twins[match.group(1)] = symbol
        else:
            by_name[public_name(symbol)].append(symbol)
    rows = {}
    for name, family in by_name.items():
        family.sort(key=_versioned)
        plain = sorted(known[name, False])
        with_twin = [symbol for symbol in family if symbol in twins]
        twin_versions = sorted(known[name, True])
        if len(plain) != len(family) or len(twin_versions) != len(with_twin):
            raise ValueError(f"{name}: versions {plain} do not fit symbols {family}")
        twin_since = dict(zip(with_twin, twin_versions))
        for symbol, since in zip(family, plain):
            rows[symbol] = (since, twins.get(symbol), twin_since.get(symbol))
    return rows
