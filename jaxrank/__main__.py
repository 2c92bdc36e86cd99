"""`python -m jaxrank`."""

import sys


def main() -> None:
    """Runs the command line, or says what it needs."""
    try:
        from jaxrank.cli import run
    except ImportError as error:
        sys.exit(f'jaxrank: error: the command line needs more packages: pip install "jaxrank[cli]" ({error})')
    run()


if __name__ == "__main__":
    main()
