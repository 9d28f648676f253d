"""How the bytes of new weights reach the servers, one file each."""
