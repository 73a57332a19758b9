"""Scripts to run; a package only so that type checkers tell its train.py from others."""
