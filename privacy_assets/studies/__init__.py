"""Attacks and studies of the papers. No step of a table imports them."""
