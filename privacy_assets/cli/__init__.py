"""The command line ``privacy-assets``, with one module per command."""
