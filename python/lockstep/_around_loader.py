"""The base of classes that stand in for a DataLoader with batches of their own."""

from typing import Any


class AroundLoader:
    """Has the loader's length and attributes, but the private ones."""

    _loader: Any

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)
