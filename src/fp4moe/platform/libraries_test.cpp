#include "fp4moe/platform/libraries.hpp"

#include <gtest/gtest.h>

#include "support/fake_root.hpp"

namespace fp4moe::platform {
namespace libraries_test {

constexpr std::string_view kSite = "/lib/python3.11/site-packages";

void package(const FakeRoot& root, const std::string& folder) {
  root.file(folder + "/__init__.py");
}

std::vector<FoundLibrary> found(const FakeRoot& root, Variables variables) {
  return find_libraries({.root = root.path(), .lookup = with(std::move(variables))});
}

// Where a library was found, below the root; empty when it was not.
std::string place(const FakeRoot& root, Variables variables, Library library) {
  for (const FoundLibrary& one : found(root, std::move(variables)))
    if (one.library == library) return one.path.substr(root.path().size());
  return {};
}

TEST(Libraries, NoneAreFoundOnAnEmptyMachine) {
  const FakeRoot root;
  EXPECT_TRUE(found(root, {}).empty());
  EXPECT_TRUE(package_folders({.root = root.path(), .lookup = with({})}).empty());
}

TEST(Libraries, AreFoundWhereverPythonWouldLook) {
  struct Case {
    std::string folder;
    Variables variables;
  };
  const std::vector<Case> cases{
      {"/x/y/aiter", {{"PYTHONPATH", ":/nowhere:/x/y:relative"}}},
      {"/venv/lib/python3.12/site-packages/aiter", {{"VIRTUAL_ENV", "/venv"}}},
      {"/conda/lib/python3.10/site-packages/aiter", {{"CONDA_PREFIX", "/conda"}}},
      {"/venv/lib64/python3.12/site-packages/aiter", {{"VIRTUAL_ENV", "/venv"}}},
      {"/root/.local/lib/python3.11/site-packages/aiter", {{"HOME", "/root"}}},
      {"/usr/lib/python3/dist-packages/aiter", {}},
      {"/usr/local/lib/python3.11/dist-packages/aiter", {}},
  };
  for (const Case& one : cases) {
    const FakeRoot root;
    package(root, one.folder);
    EXPECT_EQ(place(root, one.variables, Library::aiter), one.folder);
  }
}

TEST(Libraries, AreFoundBesideThePythonOnPath) {
  const FakeRoot root;
  root.file("/first/python3");  // may not be executed
  root.program("/opt/py/bin/python3.11");
  root.link("/opt/py/bin/python3", "python3.11");
  root.link("/home/me/bin/python3", "../../../opt/py/bin/python3");
  package(root, "/opt/py" + std::string(kSite) + "/quark");

  for (const char* path : {"/first:/opt/py/bin", "/home/me/bin"})
    EXPECT_EQ(place(root, {{"PATH", path}}, Library::quark),
              "/opt/py" + std::string(kSite) + "/quark")
        << path;
}

TEST(Libraries, FollowThePythonThatPyenvRuns) {
  const FakeRoot root;
  root.program("/pyenv/shims/python3");
  root.file("/pyenv/version", "3.11.7\n");
  package(root, "/pyenv/versions/3.11.7" + std::string(kSite) + "/humming");
  package(root, "/pyenv/versions/3.12.1/lib/python3.12/site-packages/b12x");

  EXPECT_NE(place(root, {{"PATH", "/pyenv/shims"}}, Library::humming), "");
  EXPECT_EQ(place(root, {{"PATH", "/pyenv/shims"}}, Library::b12x), "");
  const Variables other{{"PATH", "/pyenv/shims"}, {"PYENV_VERSION", "3.12.1"}};
  EXPECT_NE(place(root, other, Library::b12x), "");
}

TEST(Libraries, AVirtualEnvironmentHidesTheSystemUnlessItSaysOtherwise) {
  const FakeRoot root;
  root.program("/venv/bin/python3");
  package(root, "/usr/lib/python3/dist-packages/deep_gemm");
  const Variables variables{{"PATH", "/venv/bin"}};

  root.file("/venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n");
  EXPECT_EQ(place(root, variables, Library::deep_gemm), "");

  root.file("/venv/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = true\n");
  EXPECT_NE(place(root, variables, Library::deep_gemm), "");
}

TEST(Libraries, PthFilesLeadToEditableInstallations) {
  const FakeRoot root;
  package(root, "/src/aiter");
  package(root, "/venv" + std::string(kSite) + "/more/quark");
  root.file("/venv" + std::string(kSite) + "/editable.pth",
            "# a comment\nimport os\n/src\r\nmore\n\n/missing\n");
  const Variables variables{{"VIRTUAL_ENV", "/venv"}};

  EXPECT_EQ(place(root, variables, Library::aiter), "/src/aiter");
  EXPECT_NE(place(root, variables, Library::quark), "");
}

TEST(Libraries, TheFirstOfTwoCopiesCounts) {
  const FakeRoot root;
  package(root, "/a/aiter");
  package(root, "/b/aiter");
  EXPECT_EQ(place(root, {{"PYTHONPATH", "/b:/a"}}, Library::aiter), "/b/aiter");
}

TEST(Libraries, AFolderWithoutAPackageIsNone) {
  const FakeRoot root;
  root.folder("/a/aiter/__pycache__");
  EXPECT_EQ(place(root, {{"PYTHONPATH", "/a"}}, Library::aiter), "");
}

TEST(Libraries, TheCopyInsideVllmCounts) {
  const FakeRoot root;
  package(root, "/a/vllm/third_party/triton_kernels");
  const auto libraries = found(root, {{"PYTHONPATH", "/a"}});
  ASSERT_EQ(libraries.size(), 1u);
  EXPECT_EQ(libraries[0].library, Library::triton_kernels);
  EXPECT_EQ(libraries[0].note, "the copy that comes with vLLM");

  package(root, "/a/triton_kernels");
  EXPECT_EQ(place(root, {{"PYTHONPATH", "/a"}}, Library::triton_kernels), "/a/triton_kernels");
  EXPECT_EQ(found(root, {{"PYTHONPATH", "/a"}})[0].note, "");
}

TEST(Libraries, FlashinferCountsOnlyWithKernelsOrACompiler) {
  const FakeRoot root;
  package(root, "/a/flashinfer");
  Variables variables{{"PYTHONPATH", "/a"}, {"PATH", "/cuda/bin"}};
  const auto usable = [&root](const Variables& set) {
    const auto libraries = found(root, set);
    return libraries.size() == 1 && usable_libraries(libraries).contains(Library::flashinfer);
  };

  EXPECT_FALSE(usable(variables));
  EXPECT_EQ(found(root, variables)[0].note,
            "does not count without the package flashinfer_cubin, or nvcc (CUDA_HOME, CUDA_PATH, "
            "PATH or /usr/local/cuda) and ninja (PATH)");
  variables["VLLM_HAS_FLASHINFER_CUBIN"] = "0";
  EXPECT_FALSE(usable(variables));
  variables["VLLM_HAS_FLASHINFER_CUBIN"] = "1";
  EXPECT_TRUE(usable(variables));
  variables.erase("VLLM_HAS_FLASHINFER_CUBIN");
  root.program("/cuda/bin/nvcc");
  EXPECT_FALSE(usable(variables));  // ninja, too
  root.program("/cuda/bin/ninja");
  EXPECT_TRUE(usable(variables));
  variables.erase("PATH");
  EXPECT_FALSE(usable(variables));
  root.program("/tools/ninja");
  variables["PATH"] = "/tools";
  EXPECT_FALSE(usable(variables));
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    variables[name] = "/cuda";
    EXPECT_TRUE(usable(variables)) << name;
    variables.erase(name);
  }
  root.program("/usr/local/cuda/bin/nvcc");
  EXPECT_TRUE(usable(variables));
  variables.erase("PATH");
  EXPECT_FALSE(usable(variables));
  package(root, "/a/flashinfer_cubin");
  EXPECT_TRUE(usable(variables));
}

TEST(Libraries, AnInstalledPackageIsFoundByItsMetadata) {
  const FakeRoot root;
  const auto version = [&](std::string_view name) {
    const auto found = find_installed_package(
        name, {.root = root.path(), .lookup = with({{"PYTHONPATH", "/a:/b"}})});
    return found ? found->version : "none";
  };
  EXPECT_EQ(version("vllm"), "none");
  root.file("/b/vllm-0.28.0.dist-info/METADATA");
  EXPECT_EQ(version("vllm"), "0.28.0");
  root.file("/a/vllm-0.33.0+cu129.dist-info/METADATA");
  EXPECT_EQ(version("vllm"), "0.33.0+cu129");
  EXPECT_EQ(version("vll"), "none");
  root.file("/a/old-1.2-py3.11.egg-info/PKG-INFO");
  EXPECT_EQ(version("old"), "1.2");
}

TEST(Libraries, AreListedInTheOrderOfTheTable) {
  const FakeRoot root;
  for (const std::string_view name : kLibraryNames) package(root, "/a/" + std::string(name));
  const auto libraries = found(root, {{"PYTHONPATH", "/a"}});
  ASSERT_EQ(libraries.size(), kLibraryNames.size());
  for (std::size_t i = 0; i < libraries.size(); ++i)
    EXPECT_EQ(name(libraries[i].library), kLibraryNames[i]);
}

TEST(Libraries, EndlessPthFilesAreCutShort) {
  const FakeRoot root;
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    root.folder("/many/" + std::to_string(i));
    lines += "/many/" + std::to_string(i) + "\n";
  }
  root.file("/venv" + std::string(kSite) + "/a.pth", lines);
  const auto folders =
      package_folders({.root = root.path(), .lookup = with({{"VIRTUAL_ENV", "/venv"}})});
  EXPECT_EQ(folders.size(), 256u);
}

}  // namespace libraries_test
}  // namespace fp4moe::platform
