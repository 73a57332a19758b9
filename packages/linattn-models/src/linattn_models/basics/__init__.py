"""What all rooms above share: checks of arguments, files, packed rows, precision, modes."""
