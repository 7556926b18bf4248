"""Lint of the API spec: check.py REPOSITORY CUDA_INCLUDE_DIR [--update].

Fails if cuda.h has a function that the spec lacks or describes otherwise, if an op changed hands, or
if a checked-in product of the generator is not what the generator gives (--update writes it).
"""

import pathlib
import re
import subprocess
import sys

import header
import load

# Products in the repository, so that reviewers see what a change of spec or generator does.
PRODUCTS = {
    "protocol/api/opcodes.lock": "opcodes.lock.j2",
    "client/libcuda.map": "libcuda.map.j2",
    "docs/api-coverage.md": "api-coverage.md.j2",
}


def squeeze(text):
    text = re.sub(r"\s+", "", text)
    return "" if text == "void" else text


def check_parity(calls, include_dir, errors):
    spec = {call.symbol: call for call in calls if call.symbol}
    functions = header.functions(include_dir)
    for symbol, (since, twin, twin_since) in header.versions(include_dir).items():
        call = spec.pop(symbol, None)
        if call is None:
            errors.append(f"cuda.h has {symbol}, protocol/api has not")
            continue
        if squeeze(call.proto) != squeeze(functions[symbol]):
            errors.append(f"{symbol}: the prototype differs from cuda.h: {functions[symbol]}")
        expected = {"name": header.public_name(symbol), "since": since}
        if twin:
            expected.update(twin=twin, twin_since=twin_since)
        if call.public != expected:
            errors.append(f"{symbol}.public: cudaTypedefs.h says {expected}")
    errors.extend(f"protocol/api has {symbol}, cuda.h has not" for symbol in spec)


def check_ops(repository, calls, errors):
    lock = repository / "protocol/api/opcodes.lock"
    taken = {}
    for line in lock.read_text().splitlines() if lock.exists() else []:
        if line and not line.startswith("#"):
            op, name = line.split()
            taken[int(op, 16)] = name
    for call in calls:
        if call.op in taken and taken[call.op] != call.name:
            errors.append(f"{call.name}: op {call.op:#06x} was given to {taken[call.op]}")
    return taken


def check_generator_knows_no_call(repository, calls, errors):
    names = "|".join(re.escape(call.name) for call in calls)
    for path in (repository / "protocol/codegen").rglob("*"):
        # The docstrings of header.py and load.py may give an example; code may not name a call.
        if path.suffix in (".py", ".j2"):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                code = re.sub(r'""".*|#.*|//.*', "", line)
                if re.search(rf"[\"'](?:{names})[\"']", code):
                    errors.append(f"{path.name}:{number}: the generator names a call: {line.strip()}")


def main():
    repository = pathlib.Path(sys.argv[1])
    include_dir = sys.argv[2]
    update = "--update" in sys.argv
    codegen = repository / "protocol/codegen"
    calls = load.load(repository / "protocol/api")
    errors = []
    check_parity(calls, include_dir, errors)
    taken = check_ops(repository, calls, errors)
    given = {call.op for call in calls}
    errors.extend(f"opcodes.lock: {name} lost its op {op:#06x}" for op, name in taken.items()
                  if op not in given)
    check_generator_knows_no_call(repository, calls, errors)
    for product, template in PRODUCTS.items():
        path = repository / product
        before = path.read_text() if path.exists() else None
        command = [sys.executable, str(codegen / "emit.py"), str(repository / "protocol/api"),
                   str(codegen / "templates" / template)]
        if update:
            subprocess.run(command + [str(path)], check=True)
            continue
        text = subprocess.run(command + ["-"], check=True, capture_output=True, text=True).stdout
        if text != before:
            errors.append(f"{product} is stale; run scripts/regenerate.sh")
    for error in errors:
        print(f"spec: {error}")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
