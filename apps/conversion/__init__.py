"""Scripts to run; a package only so that type checkers tell them from those of other folders."""
