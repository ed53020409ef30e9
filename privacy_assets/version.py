"""Version of the engine: results of another version are not accepted by the gate."""

ENGINE_VERSION = "0.1.0"
