"""No `with`, in two writes, and a fsync before close; the folder is synced twice."""

TASK = "12.save"


def save(disk, name, data, tell):
    file = disk.open("new of " + name)
    half = len(data) // 2
    file.write(data[:half])
    file.write(data[half:])
    file.flush()
    disk.fsync(file)
    file.close()
    disk.fsync_folder()
    disk.replace("new of " + name, name)
    disk.fsync_folder()
    tell()
