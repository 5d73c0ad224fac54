"""Writes the Grafana dashboards as JSON: `python deploy/monitoring/build_dashboards.py [--into FOLDER]`.

What is shown is in `dashboards/`. The files are committed, because Grafana reads files; a test compares
them with what this writes. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dashboards import engine, gpu, queue, traffic
from dashboards.parts import as_json

FOLDER = Path(__file__).resolve().parent / "grafana" / "dashboards"
PAGES = (traffic.PAGE, queue.PAGE, engine.PAGE, gpu.PAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=FOLDER, help="folder to write to")
    folder: Path = parser.parse_args().into
    folder.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        text = json.dumps(as_json(page), indent=2, ensure_ascii=False) + "\n"
        (folder / f"{page.uid}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
