"""The version of this package, from its metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("mmcalib")
except PackageNotFoundError:
    __version__ = "0+source"
