"""Version of the package. The gate rejects results of other versions."""

PACKAGE_VERSION = "0.1.0"
