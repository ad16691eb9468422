"""Writes the dashboards: `make dashboards`."""

import json
from pathlib import Path

from deploy.grafana import fleet, model, service

PLACE = Path(__file__).parent / "dashboards"


def dashboards() -> dict[str, str]:
    """The text of each file by its name."""
    built = {"fleet": fleet.build(), "model": model.build(), "service": service.build()}
    return {
        f"{name}.json": json.dumps(one, indent=2, ensure_ascii=False) + "\n"
        for name, one in built.items()
    }


def main() -> None:
    for name, text in dashboards().items():
        (PLACE / name).write_text(text)


if __name__ == "__main__":
    main()
