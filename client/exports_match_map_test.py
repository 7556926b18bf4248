"""libcuda.so.1 exports exactly what client/libcuda.map lists: exports_match_map_test.py LIBRARY MAP."""

import pathlib
import re
import subprocess
import sys


def main():
    library, map_path = sys.argv[1:3]
    text = pathlib.Path(map_path).read_text().split("local:")[0]
    listed = set(re.findall(r"^\s+(cu\w+);", text, re.MULTILINE))
    output = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", library], check=True,
                            capture_output=True, text=True).stdout
    exported = {line.split()[0].split("@")[0] for line in output.splitlines() if line}
    for name in sorted(listed - exported):
        print(f"{library} lacks {name}")
    for name in sorted(exported - listed):
        print(f"{library} exports {name}, which the map does not list")
    print(f"{len(listed)} listed, {len(exported)} exported")
    sys.exit(0 if listed == exported and listed else 1)


if __name__ == "__main__":
    main()
