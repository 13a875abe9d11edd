"""The errors a user can cause or meet; every one carries a message that says where, what was
expected, what was found and what to do. The command line prints the message and exits with 1."""


class BeamTrtError(Exception):
    """Base of every error whose message alone is enough for the user; never wraps a bug of ours."""


class ConfigError(BeamTrtError):
    """A configuration value, file or combination of options that cannot be right."""


class CheckpointError(BeamTrtError):
    """A checkpoint folder that is missing, damaged, incomplete or not a Beam model."""


class EngineError(BeamTrtError):
    """An engine directory that is damaged, or started in a way it was not built for."""


class OutputError(BeamTrtError):
    """An output that cannot be written: folder not empty, disk full, no permission."""


class RequestError(BeamTrtError):
    """A generation request that cannot be served: bad sampling value, prompt too long."""


class ServerError(BeamTrtError):
    """A server that cannot be started or reached, or that went away in the middle."""
