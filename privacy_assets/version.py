"""Version of the engine. The gate rejects results of other versions."""

ENGINE_VERSION = "0.1.0"
