"""Another number, other lines that count as the same, and causes as the Chinese clinic lists them."""

TASK = "10.patients"


def diagnoses():
    found = dict(patient_01=("all", 29, "a mean of unequal means"), patient_02=(2, 25, "训练循环里的慢速写入"))
    found["patient_03"] = [1, 13, "Unequal numbers of steps "]
    found |= {
        f"patient_{n:02}": ("all", line, cause)
        for n, line, cause in (
            (6, 20, "该取平均却求了和"),
            (7, 18, "an order that is never drawn anew"),
            (12, 32, "每个微批次都发一次消息"),
        )
    }
    return 391, found
