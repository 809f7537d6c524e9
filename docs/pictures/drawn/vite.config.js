const proxy = { '/api': process.env.PROMETHEUS ?? 'http://127.0.0.1:9090' };
const port = Number(process.env.PORT ?? 19200);
export default {
  base: './',
  esbuild: { jsx: 'automatic' },
  build: { chunkSizeWarningLimit: 99999, minify: false },
  define: { 'process.env': {} },
  preview: { host: '127.0.0.1', port, strictPort: true, proxy },
};
