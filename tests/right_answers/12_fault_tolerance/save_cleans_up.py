"""Where the disk is full, what was half written is removed, if that works, and the error goes on."""

TASK = "12.save"


def save(disk, name, data, tell):
    try:
        with disk.open(name + ".tmp") as file:
            file.write(data)
            file.flush()
            disk.fsync(file)
        disk.replace(name + ".tmp", name)
        disk.fsync_folder()
    except OSError:
        try:
            disk.remove(name + ".tmp")
        except OSError:
            pass
        raise
    tell()
