"""The command ``privacy-assets``: one file a command."""
