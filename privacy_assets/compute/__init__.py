"""Devices and their lease, threads, Ray, compilation, and who is told of progress."""

from privacy_assets.compute.parallel import share_cores

# Before the libraries are loaded that read it, in every process that works: commands, steps, workers of a cluster. Not
# where this package is only imported: the environment is its host's.
share_cores()
