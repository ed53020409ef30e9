"""Devices and their lease, threads, Ray, compilation, and who is told of progress."""
