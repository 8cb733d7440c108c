"""The checks themselves: each kind of forbidden thing is found in a small tree, and what is allowed is let pass."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import check_layers  # noqa: E402
import check_sleeps  # noqa: E402
import draw_rooms  # noqa: E402


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for path in ("base/ids.h", "policies/policy.h", "transport/transport.h", "coordinator/core/coordinator.h",
                     "worker/runtime/session.h", "tools/bench.h", "tests/fixture.h"):
            self.write(path, "#pragma once\n")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def layers(self, pure=()):
        return check_layers.Checker(self.root, pure).check()


class LayersTest(TreeTest):
    def assert_include(self, path, include, allowed):
        with self.subTest(path=path, include=include):
            self.write(path, f"// A comment.\n#include {include}\n")
            found = self.layers()
            (self.root / path).unlink()
            if allowed:
                self.assertEqual(found, [])
            else:
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(f"{path}:2: "), found)

    def test_folders_include_what_the_table_allows(self):
        headers = {"base": '"base/ids.h"', "policies": '"policies/policy.h"', "transport": '"transport/transport.h"',
                   "coordinator": '"coordinator/core/coordinator.h"', "worker": '"worker/runtime/session.h"', "tools": '"tools/bench.h"',
                   "tests": '"tests/fixture.h"'}
        allowed = {"base": "base", "policies": "base policies", "transport": "base transport",
                   "coordinator": "base policies transport coordinator", "worker": "base policies transport worker",
                   "tools": "base policies transport coordinator worker tools",
                   "tests": "base policies transport coordinator worker tools tests"}
        for folder, may in allowed.items():
            for other, header in headers.items():
                top = {"coordinator": "coordinator/shell", "worker": "worker/capi"}.get(folder, folder)
                self.assert_include(f"{top}/x.cc", header, other in may.split())

    def test_rooms_include_what_their_rule_allows(self):
        def header(name):
            self.write(name, "#pragma once\n")
            return f'"{name}"'

        for folder, rooms in check_layers.ROOMS.items():
            headers = {name: header(f"{folder}/{name}/x.h") for name in rooms}
            beside = header(f"{folder}/x.h")
            for name, allowed in rooms.items():
                self.assert_include(f"{folder}/{name}/x.cc", beside, True)
                self.assert_include(f"{folder}/x.cc", headers[name], False)
                for other, include in headers.items():
                    self.assert_include(f"{folder}/{name}/deep/x.cc", include, other in {name, *allowed})

    def test_the_ground_is_below_all(self):
        for room, forbidden in (("coordinator/job", "coordinator/round/pipeline.h"), ("coordinator/round", "coordinator/core/context.h"),
                                ("coordinator/round", "coordinator/membership/joining.h"), ("worker/core", "worker/memory/reduce.h"),
                                ("transport", "transport/tcp/frame.h"), ("coordinator/http", "coordinator/core/coordinator.h")):
            self.write(forbidden, "#pragma once\n")
            self.assert_include(f"{room}/x.cc", f'"{forbidden}"', False)

    def test_rooms_without_a_circle(self):
        self.assertEqual(check_layers.cycles(check_layers.ROOMS), [])
        self.assertEqual(check_layers.cycles({"worker": {"core": {"layout"}, "layout": set()}}), [])
        found = check_layers.cycles({"worker": {"core": {"memory"}, "memory": {"layout"}, "layout": {"core"}}, "coordinator": {}})
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("worker: the rooms may include each other in a circle: "))

    def test_a_room_without_a_rule(self):
        self.write("worker/attic/x.cc", "")
        self.assertEqual(self.layers(), ["worker/attic/x.cc:1: no rule says what worker/attic/ may include"])

    def test_libraries(self):
        for header in ("<vector>", "<boost/asio.hpp>", "<fmt/format.h>", "<spdlog/spdlog.h>"):
            self.assert_include("base/x.h", header, True)
        for header in ("<unistd.h>", "<google/protobuf/message.h>", "<openssl/evp.h>"):
            self.assert_include("base/x.h", header, False)
        self.assert_include("policies/x.h", "<spdlog/spdlog.h>", False)
        self.assert_include("transport/x.cc", "<sys/socket.h>", True)

    def test_includes_are_named_from_the_root(self):
        self.assert_include("base/x.cc", '"ids.h"', False)
        self.assert_include("base/x.cc", '"base/missing.h"', False)
        self.assert_include("transport/x.cc", '"lockstep.pb.h"', True)

    def test_a_folder_without_a_rule(self):
        self.write("misc/x.cc", "")
        self.assertEqual(self.layers(), ["misc/x.cc:1: no rule says what misc/ may include"])

    def test_names_of_libraries_stay_in_their_folders(self):
        for code, home, away in (("auto* x = ucp_worker_create;", "transport/ucx/x.cc", "transport/tcp/x.cc"),
                                 ("cudaMalloc(&p, 1);", "worker/compute/cuda/x.cc", "worker/compute/cpu/x.cc"),
                                 ("cudaMalloc(&p, 1);", "tests/gpu/x.cu", "tests/gpu/x.cc"),
                                 ("#include <cuda_runtime.h>", "transport/staging/cuda/x.h", "transport/staging/x.h"),
                                 ("cublasCreate(&h);", "worker/x.cu", "worker/x.cc"),
                                 ("__global__ void F();", "worker/x.cu", "worker/x.h"),
                                 ("F<<<1, 1>>>();", "worker/x.cu", "worker/x.cc"),
                                 ("cblas_sgemm();", "worker/compute/cpu/x.cc", "worker/models/x.cc"),
                                 ("#include <cblas.h>", "worker/compute/cpu/x.cc", "tests/unit/x.cc")):
            for path, count in ((home, 0), (away, 1)):
                with self.subTest(code=code, path=path):
                    self.write(path, f"{code}\n")
                    self.assertEqual(len(self.layers()), count)
                    (self.root / path).unlink()

    def test_headers_that_bring_cuda_are_not_included_elsewhere(self):
        self.write("worker/compute/cuda/plain.h", "#pragma once\n")
        self.write("worker/compute/cuda/stream.h", "#include <cuda_runtime_api.h>\n")
        self.write("worker/compute/cuda/deep.h", '#include "worker/compute/cuda/stream.h"\n')
        for header, count in (("plain", 0), ("stream", 1), ("deep", 1)):
            with self.subTest(header=header):
                self.write("worker/runtime/x.cc", f'#include "worker/compute/cuda/{header}.h"\n')
                self.assertEqual(len(self.layers()), count)
                self.write("worker/compute/cuda/x.cc", f'#include "worker/compute/cuda/{header}.h"\n')
                self.assertEqual(len(self.layers()), count)

    def test_comments_and_literals_do_not_count(self):
        self.write("worker/x.cc", '// ucp_worker, cudaMalloc\n/* cblas_sgemm\n#include "tools/bench.h"\n*/\n'
                                  'auto a = "ucp_x"; auto b = R"(cudaMalloc")"; int c = 1\'000\'000; char d = \'"\';\n')
        self.assertEqual(self.layers(), [])
        self.write("worker/x.cc", 'int c = 1\'000; auto* x = ucp_y; char d = \'a\';\n')
        self.assertEqual(len(self.layers()), 1)


class PureTest(TreeTest):
    def test_pure_code_reaches_no_shell(self):
        self.write("worker/core.cc", '#include "worker/core.h"\n#include "base/ids.h"\n#include <vector>\n')
        self.write("worker/core.h", '#include "policies/policy.h"\n')
        self.write("worker/loop.cc", '#include "transport/transport.h"\n#include <thread>\n')
        self.assertEqual(self.layers(["worker/core.cc"]), [])
        self.write("worker/core.h", '#include "worker/deep.h"\n')
        self.write("worker/deep.h", '#include "transport/transport.h"\n')
        self.assertEqual(self.layers(["worker/core.cc"]), ['worker/deep.h:1: pure code may not include "transport/transport.h"'])

    def test_pure_code_has_no_threads_clocks_or_files(self):
        for line in ("#include <thread>", "#include <mutex>", "#include <fstream>", "#include <unistd.h>",
                     "#include <boost/asio.hpp>", "auto t = std::chrono::steady_clock::now();"):
            with self.subTest(line):
                self.write("coordinator/core.cc", f"{line}\n")
                self.assertEqual(len(self.layers(["coordinator/core.cc"])), 1)
                self.assertEqual(self.layers(), [])

    def test_a_listed_source_must_exist(self):
        self.assertEqual(len(self.layers(["coordinator/gone.cc"])), 1)


class DrawingTest(TreeTest):
    def test_the_page_is_held_to_the_sources(self):
        self.write("coordinator/core/coordinator.h", '#include "coordinator/job/context.h"\n#include "base/ids.h"\n')
        self.write("coordinator/job/context.h", '#include "policies/policy.h"\n#include "base/ids.h"\n')
        self.write("policies/policy.h", '#include "base/ids.h"\n')
        page = draw_rooms.current(f"# Above\n{draw_rooms.BEGIN}old\n{draw_rooms.END}Below\n", self.root)
        self.assertTrue(page.startswith("# Above\n") and page.endswith("Below\n"))
        self.assertNotIn("old\n", page)
        self.assertEqual([line for line in page.splitlines() if "-->" in line and "draw_rooms" not in line],
                         ["  coordinator_core --> coordinator_job", "  coordinator_job --> policies", "  policies --> base"])
        self.assertEqual(draw_rooms.current(page, self.root), page)
        self.write("coordinator/core/coordinator.h", '#include "base/ids.h"\n')
        self.assertNotEqual(draw_rooms.current(page, self.root), page)


class SleepsTest(TreeTest):
    def test_sleeps_are_found_and_allowed_by_name(self):
        for path, line in (("worker/x.cc", "std::this_thread::sleep_for(1ms);"), ("worker/x.cc", "usleep(5);"),
                           ("tests/x.cc", "  sleep(1);"), ("tests/x.py", "time." "sleep(1)")):
            with self.subTest(line):
                self.write(path, f"\n{line}\n")
                found = check_sleeps.sleeps(self.root)
                self.assertEqual(found, {path: [2]})
                self.assertEqual(len(check_sleeps.problems(found, {})), 1)
                self.assertEqual(check_sleeps.problems(found, {path: "a reason"}), [])
                (self.root / path).unlink()
        self.write("worker/x.cc", '// sleep_for\nauto a = "usleep"; timer.sleep(); Beauty_sleep();\n')
        self.assertEqual(check_sleeps.sleeps(self.root), {})

    def test_an_entry_that_is_not_needed_is_an_error(self):
        self.assertEqual(len(check_sleeps.problems({}, {"worker/x.cc": "a reason"})), 1)


if __name__ == "__main__":
    unittest.main()
