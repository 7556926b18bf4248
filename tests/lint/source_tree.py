"""The files of the source tree, for the lint tests."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tracked_files(root=ROOT, suffixes=None):
    """Paths relative to `root` of what git tracks, or of every file where there is no git."""
    listing = subprocess.run(['git', '-c', f'safe.directory={root}', 'ls-files', '-z'], cwd=root,
                             capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        names = [name for name in listing.stdout.split('\0') if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob('*') if path.is_file()]
    return sorted(name for name in names
                  if (root / name).is_file()
                  and (suffixes is None or pathlib.Path(name).suffix in suffixes))


def read_text(path):
    """The text of a file, or None for one that is not text."""
    try:
        return path.read_bytes().decode('utf-8')
    except UnicodeDecodeError:
        return None


def write_tree(root, files):
    """Makes a small tree for a test: {'folder/name': text}."""
    for name, text in files.items():
        path = pathlib.Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding='utf-8')
    return pathlib.Path(root)
