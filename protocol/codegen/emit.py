"""Renders one template with the API spec: emit.py API_DIR TEMPLATE OUTPUT|-.

Templates hold the verbs; this file and load.py know no call by name (a lint test checks that).
"""

import pathlib
import sys

import jinja2

import load


def main():
    api_dir, template, output = sys.argv[1:4]
    calls = load.load(api_dir)
    path = pathlib.Path(template)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(path.parent), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    text = environment.get_template(path.name).render(
        calls=calls,
        symbols=[call for call in calls if call.symbol],
        remote=[call for call in calls if call.remote],
        groups=sorted({call.group for call in calls}))
    if output == "-":
        sys.stdout.write(text)
        return
    out = pathlib.Path(output)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Unchanged text keeps its time stamp, so that nothing is compiled again.
    if not out.exists() or out.read_text() != text:
        out.write_text(text)


if __name__ == "__main__":
    main()
