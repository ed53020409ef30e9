"""Entry point of ``python -m privacy_assets``."""

from privacy_assets.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
