import { readdirSync } from "node:fs";
import { defineConfig, type UserConfig } from "vite";

const BUILT = "../src/vario/web/built";

/** The dashboard: index.html and a few files beside it, with relative addresses, so that any path prefix works. */
const page: UserConfig = {
  base: "./",
  build: {
    outDir: BUILT,
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    chunkSizeWarningLimit: 400,
    target: "es2022",
  },
};

/** The offline report: one classic script and one style sheet that are put into one HTML file. */
const report: UserConfig = {
  base: "./",
  publicDir: false,
  build: {
    outDir: BUILT,
    emptyOutDir: false,
    target: "es2022",
    cssCodeSplit: false,
    rollupOptions: {
      input: "src/report.tsx",
      output: { format: "iife", entryFileNames: "report.js", assetFileNames: "report.[ext]", codeSplitting: false },
    },
  },
};

/** The tests of pure logic, as plain JavaScript for `node --test`. */
const tests: UserConfig = {
  publicDir: false,
  build: {
    outDir: ".tests",
    emptyOutDir: true,
    ssr: true,
    minify: false,
    target: "node20",
    rollupOptions: { input: readdirSync("tests").map((name) => `tests/${name}`) },
  },
};

const builds: Record<string, UserConfig> = { report, tests };

export default defineConfig(({ mode }) => builds[mode] ?? page);
