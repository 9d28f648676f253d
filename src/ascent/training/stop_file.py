"""The name of the variable through which a launcher tells its processes where the stop file will appear."""

STOP_FILE_VARIABLE = "ASCENT_STOP_FILE"
