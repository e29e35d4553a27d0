"""The version of this package, from its metadata."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("mmcalib")
except PackageNotFoundError:
    VERSION = "0+source"
