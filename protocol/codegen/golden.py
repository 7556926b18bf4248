"""golden.py REPOSITORY [--update]: what the templates make of tests/golden/codegen/toy.yaml.

FARGPU_UPDATE_GOLDENS=1 is the same as --update.
"""

import os
import pathlib
import subprocess
import sys


def main():
    repository = pathlib.Path(sys.argv[1])
    update = "--update" in sys.argv or os.environ.get("FARGPU_UPDATE_GOLDENS") == "1"
    goldens = repository / "tests/golden/codegen"
    codegen = repository / "protocol/codegen"
    stale = []
    for template in sorted((codegen / "templates").glob("*.j2")):
        text = subprocess.run(
            [sys.executable, str(codegen / "emit.py"), str(goldens), str(template), "-"],
            check=True, capture_output=True, text=True).stdout
        # The suffix keeps formatters and builds away from files that no one compiles.
        golden = goldens / (template.stem + ".golden")
        if update:
            golden.write_text(text)
        elif not golden.exists() or golden.read_text() != text:
            stale.append(golden.name)
    for name in stale:
        print(f"golden: {name} differs; look at the change, then FARGPU_UPDATE_GOLDENS=1")
    sys.exit(1 if stale else 0)


if __name__ == "__main__":
    main()
