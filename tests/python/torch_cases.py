"""Runs many small scripts in one process, for importing torch takes seconds. usage: torch_cases.py FILE

FILE: a JSON list of scripts. Prints a JSON list of [status, message] as they would end; 0 and "" for a script that ends well.
"""

import json
import sys

import lockstep

results = []
with open(sys.argv[1], encoding="utf-8") as file:
    scripts = json.load(file)
for text in scripts:
    names = {"__name__": "script"}
    try:
        exec(compile(text, "script", "exec"), names)
        results.append((0, ""))
    except lockstep.Error as error:
        results.append((error.status, str(error)))
        if "job" in names:
            names["job"].leave("the case is over")
    if "job" in names:
        names["job"].close()
print(json.dumps(results))
